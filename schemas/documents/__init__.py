"""The files beside shards that people and other tools read, from a manifest alone."""
