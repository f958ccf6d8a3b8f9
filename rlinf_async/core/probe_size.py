"""How many samples are scored to compare policies; without torch, as configs are read without it."""

SAMPLES = 32
"""Samples per staleness, batch and learner rank on which ratios are measured at most."""
