"""Forecast a run that writes nothing: shards, sizes, splits, reads, time and costs."""
