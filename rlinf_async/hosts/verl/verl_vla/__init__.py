"""Environments and policies of verl-vla, an optional package of the user's, for runs under veRL.

verl-vla is imported only for a config that names it.
"""
