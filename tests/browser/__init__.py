"""Checks of the report's page in a real browser; they run in their own environment."""
