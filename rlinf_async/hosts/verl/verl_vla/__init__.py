"""Environments and policies of verl-vla, which the user installs, under veRL and by their own names.

Nothing of it is imported before a config asks for it.
"""
