"""The paper's pictures."""
