"""The calls with which a run of RLinf begins, and the test whether its config needs this package; for
`plugin.watch`.

This module imports little more than the standard library, as it is loaded wherever Hydra starts.
"""

from __future__ import annotations

from typing import Any

from rlinf_async.core.config_keys import misplaced
from rlinf_async.entry_points import MODELS_GROUP, names_of

CALLS = {
    "rlinf.scheduler.cluster.cluster": ("Cluster", "__init__"),
    "rlinf.scheduler.worker.worker": ("Worker", "create_group"),
}
"""{module of RLinf: (class, method)}: the calls with which every run begins and chooses its worker
classes."""


def asks(argument: object) -> bool:
    """Return True if `argument` is, or is a part of, a config that needs this package."""
    # This method identifies OmegaConf's nodes without importing OmegaConf. RLinf's cluster gets only a
    # section (`Cluster(cluster_cfg=cfg.cluster)`); the root of that section is the run's config.
    if not hasattr(argument, "_get_root"):
        return False
    root = argument._get_root()
    if root.get("async") is not None or root.get("warm_start") is not None or misplaced(root):
        return True
    return names_our_parts(root)


def names_our_parts(cfg: object) -> bool:
    """Return True if a config names a model or an environment that an entry point provides."""
    model = _get(cfg, "actor", "model", "model_type")
    brought = names_of(MODELS_GROUP)
    return model in brought or any(_get(cfg, "env", part, "env_class") for part in ("train", "eval"))


def _get(node: object, *names: str) -> Any:
    for name in names:
        node = node.get(name) if hasattr(node, "get") else None
    return node
