"""The models that come with the app."""
