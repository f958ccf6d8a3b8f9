"""Checks a config before its run: the tables of keys, and the reasons why a config cannot run."""
