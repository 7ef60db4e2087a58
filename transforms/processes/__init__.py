"""Processes beside a run, without Beam: they build its shards and read its long files."""
