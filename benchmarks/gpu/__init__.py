"""Throughput of each level on one GPU, on the local host, without Ray and RLinf."""
