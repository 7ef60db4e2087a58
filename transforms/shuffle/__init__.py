"""How samples travel between Beam steps: coders, batches, and the spool of a run in process."""
