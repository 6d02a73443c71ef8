"""Generation: models, the engine that runs them, and the states of conversations."""
