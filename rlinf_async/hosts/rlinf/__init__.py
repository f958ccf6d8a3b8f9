"""The RLinf host: the only package that imports RLinf."""
