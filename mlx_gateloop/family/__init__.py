"""Recurrent models of flash-linear-attention (arXiv 2312.06635) whose operator is ours."""
