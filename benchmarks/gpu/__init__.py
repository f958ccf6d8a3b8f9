"""Throughput of each level on one GPU, on the local host: no Ray, no RLinf."""
