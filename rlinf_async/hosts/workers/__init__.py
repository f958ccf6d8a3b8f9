"""Env workers and inference ranks on Ray, for frameworks without their own for embodied policies.

The local host uses their shards, without Ray. These modules import no framework: a process needs only the
package of its environments or of its policy.
"""

WORKERS_GROUP = "rlinf_async.verl_workers"
"""The group of the entry points for these classes."""
