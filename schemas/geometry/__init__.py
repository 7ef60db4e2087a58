"""Places in pictures: boxes, points and masks, and what turning and resizing does to them."""
