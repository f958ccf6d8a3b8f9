"""Runs whose processes are killed at random, beside the same runs left alone."""
