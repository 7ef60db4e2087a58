"""Types and formats of the data. They do no I/O, and import neither Beam nor TensorFlow."""
