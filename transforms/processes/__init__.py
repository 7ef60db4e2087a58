"""Processes that build a run's shards next to it, without Beam."""
