"""The calls with which a run of RLinf begins, and the test if it asks for this package: for
`plugin.watch`.

It imports little more than the standard library, as it is loaded wherever Hydra starts.
"""

from __future__ import annotations

from typing import Any

from rlinf_async.core.config_keys import misplaced
from rlinf_async.entry_points import MODELS_GROUP, names_of

CALLS = {
    "rlinf.scheduler.cluster.cluster": ("Cluster", "__init__"),
    "rlinf.scheduler.worker.worker": ("Worker", "create_group"),
}
"""Modules of RLinf, and the calls in them by which every run begins and names its worker classes."""


def asks(argument: object) -> bool:
    """Return True if `argument` is, or is a part of, a config that names this package or a part that it
    brings.
    """
    # OmegaConf's nodes have it, by which they are known without importing OmegaConf. RLinf's cluster is given
    # a section alone (`Cluster(cluster_cfg=cfg.cluster)`): the run's config is its root.
    if not hasattr(argument, "_get_root"):
        return False
    root = argument._get_root()
    if root.get("async") is not None or root.get("warm_start") is not None or misplaced(root):
        return True
    return names_our_parts(root)


def names_our_parts(cfg: object) -> bool:
    """Return True if a config names a model or an environment of an entry point."""
    model = _get(cfg, "actor", "model", "model_type")
    brought = names_of(MODELS_GROUP)
    return model in brought or any(_get(cfg, "env", part, "env_class") for part in ("train", "eval"))


def _get(node: object, *names: str) -> Any:
    for name in names:
        node = node.get(name) if hasattr(node, "get") else None
    return node
