"""What a model remembers: traces of its state transitions."""
