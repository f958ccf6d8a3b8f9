"""Judging a config before its run: the tables of keys, and the reasons why it cannot run."""
