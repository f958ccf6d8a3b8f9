"""veRL as a host: a trainer mode of its registry, around its own engine, losses and checkpoints."""
