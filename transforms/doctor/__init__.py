"""Doctor: look, before a run, at all that it stands on, and say what is wrong with its remedy."""
