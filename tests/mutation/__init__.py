"""Mutation testing of the core: what small edits of it no test notices (`make mutation`)."""
