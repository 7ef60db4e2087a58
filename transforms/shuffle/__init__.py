"""Coders, batches and spools for samples between Beam steps."""
