"""Readers of samples, a module for each source."""
