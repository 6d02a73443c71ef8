"""The paper's synthetic experiment and its neighbours: train, compare and report."""
