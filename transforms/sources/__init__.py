"""Samples from sources: COCO's files, folders, tables, side files, pairs and arrays."""
