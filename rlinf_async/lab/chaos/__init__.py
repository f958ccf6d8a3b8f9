"""Faults that are injected on purpose into a run that goes on."""
