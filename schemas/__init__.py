"""What the data is: no Beam, no TensorFlow at import, no I/O."""
