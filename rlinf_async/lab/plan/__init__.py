"""Predict the speed of runs from the records of one run."""
