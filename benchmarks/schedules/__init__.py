"""Measurements of `rlinf-async bench`, predictions of held-out runs, and the demo on both hosts."""
