"""RLinf as a host: the only place that imports it."""

SUPPORTED = "0.3.0"
"""The RLinf version whose workers these classes extend."""
