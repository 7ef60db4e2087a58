"""What we do: one concept a file, pure functions first, PTransforms last."""
