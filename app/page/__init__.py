"""The page: its layout, what its buttons do, and the state view."""
