"""Records of other data sets: read them as a source, and copy them unchanged."""
