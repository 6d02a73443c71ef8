"""Models, the engine that runs them, and the cached states of conversations."""
