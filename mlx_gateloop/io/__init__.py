"""Model directories, and files that are replaced whole."""
