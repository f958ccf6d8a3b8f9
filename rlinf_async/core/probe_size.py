"""The number of samples that are scored to compare policies; free of torch, for readers of configs."""

MAX_PROBE_SAMPLES = 32
"""Samples per staleness, batch and learner rank on which ratios are measured at most."""
