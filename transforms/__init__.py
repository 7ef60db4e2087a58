"""Steps of the pipelines: one concept per file, pure functions first, PTransforms last."""
