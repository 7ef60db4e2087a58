"""Hostile inputs for all code that reads foreign bytes; see README.md."""
