"""The server: limits, isolation, logins and connections."""
