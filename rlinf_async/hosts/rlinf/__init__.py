"""RLinf as a host: the only place that imports it."""
