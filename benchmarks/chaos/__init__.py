"""Experiments on faults: killed and stopped processes, failing environments, full disks."""
