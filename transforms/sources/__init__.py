"""Readers of samples: COCO files, folders, tables, files next to images, image pairs and arrays."""
