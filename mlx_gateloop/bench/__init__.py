"""`gateloop bench`: our code and its installed peers, timed on the same arrays in one run."""
