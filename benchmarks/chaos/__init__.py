"""Experiments on faults: runs whose processes are killed or stopped, whose environments fail, or whose disk
is full.
"""
