"""Guards of the invariants taken out one at a time: each must turn a test red (`make sabotage`)."""
