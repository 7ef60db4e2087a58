"""Verify what was written: find what has been damaged since, down to record, key and byte."""
