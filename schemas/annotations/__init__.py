"""Annotation files, strictly read: COCO's, LabelMe's, SA-1B's, and files next to images."""
