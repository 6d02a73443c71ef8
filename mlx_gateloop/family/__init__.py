"""Recurrent models of flash-linear-attention (arXiv 2312.06635), and SSD: our operator."""
