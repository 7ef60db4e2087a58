"""How it is wired: options, graphs and commands; no per-element logic."""
