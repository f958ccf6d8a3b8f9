"""Decisions of asynchronous RL, without I/O: no thread, no queue, no clock, no framework."""
