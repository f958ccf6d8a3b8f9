"""The veRL host: a trainer mode in veRL's registry, with veRL's own engine, losses and checkpoints."""
