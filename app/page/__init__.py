"""The page: layout, event handlers and the state view."""
