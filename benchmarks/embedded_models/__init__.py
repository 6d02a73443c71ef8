"""Builds the embedded models: their corpus and their packaging."""
