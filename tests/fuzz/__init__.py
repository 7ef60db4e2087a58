"""Hostile inputs for everything that reads bytes of strangers; see README.md."""
