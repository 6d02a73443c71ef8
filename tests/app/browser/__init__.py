"""The page in a real browser; a package, so that its modules can share one browser and one tab."""
