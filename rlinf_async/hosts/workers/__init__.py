"""Env workers and inference ranks for a host on Ray whose framework has none for policies that act.

The local host has their shards, without Ray. They import no framework: what a process of them needs is the
package of its environments or of its policy.
"""

WORKERS_GROUP = "rlinf_async.verl_workers"
"""The group of the entry points that name them."""
