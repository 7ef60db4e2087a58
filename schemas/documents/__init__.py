"""Documents that are written with the shards, for people and other tools; made from a manifest."""
