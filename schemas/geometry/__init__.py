"""Boxes, points and masks: how they are clipped, turned, cropped and resized."""
