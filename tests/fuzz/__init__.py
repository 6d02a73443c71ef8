"""Changed copies of good files, read by everything that reads files from elsewhere."""
