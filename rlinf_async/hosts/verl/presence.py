"""Whether what a config names is here: veRL finds out in its processes, after Ray has started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from rlinf_async.core.nested import lookup
from rlinf_async.hosts.presence import absent_env_classes, absent_loggers
from rlinf_async.hosts.reasons import Reason, unknown

PACKAGES = ("wandb", "swanlab", "mlflow", "clearml", "trackio")
"""Loggers of veRL that are packages of their own, by the same name."""
ESTIMATOR = "algorithm.adv_estimator"


def absent(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """What `cfg` (plain data) names, and neither veRL nor an entry point has."""
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.utils.tracking import Tracking

    yield from absent_env_classes(cfg)
    models = sorted(entry_points(group="rlinf_async.models").names)
    if (name := lookup(cfg, "vla.model.model_type")) not in models:
        yield unknown("vla.model.model_type", name, models, "an entry point of rlinf_async.models")
    estimators = sorted(str(getattr(each, "value", each)) for each in ADV_ESTIMATOR_REGISTRY)
    if str(name := lookup(cfg, ESTIMATOR)) not in estimators:
        yield unknown(ESTIMATOR, name, estimators, "an estimator of veRL")
    yield from absent_loggers(
        "trainer.logger",
        lookup(cfg, "trainer.logger"),
        list(Tracking.supported_backend),
        what="a logger of veRL",
        packages=PACKAGES,
        instead="console",
    )
