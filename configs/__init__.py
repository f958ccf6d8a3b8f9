"""Hydra configs; Hydra finds them as a package."""
