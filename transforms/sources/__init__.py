"""Readers of samples: COCO files, folders, tables, sidecar files, image pairs and arrays."""
