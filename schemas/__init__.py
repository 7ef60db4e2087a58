"""Types and formats of the data: no I/O, no Beam, and no TensorFlow at import."""
