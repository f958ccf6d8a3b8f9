"""Step times of other placements and more GPUs, from those of a few synchronous runs."""
