"""The common part of the hosts, which knows no framework."""
