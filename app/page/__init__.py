"""The page: its layout, its event handlers, and the state view."""
