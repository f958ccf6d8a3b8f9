"""Starts the processes of a run that are not veRL's: env workers and inference ranks."""

from __future__ import annotations

from typing import Any

import ray

from rlinf_async.entry_points import load_class
from rlinf_async.hosts import workers
from rlinf_async.hosts.verl.placement import resources, too_small
from rlinf_async.hosts.verl.settings import VerlSettings, horizon, process_count, section
from rlinf_async.hosts.verl.view import VerlView
from rlinf_async.ray_runtime.driver.revivals import RESTARTABLE_OPTIONS


def check_places(view: VerlView, settings: VerlSettings, *, on_gpu: bool) -> None:
    """Check that Ray has places for the processes of a run, as veRL would wait for them for ever.

    Raises:
        ValueError: there are not enough; the message has the setting to change.
    """
    plan = settings.plan
    if missing := list(too_small(view, plan, ray.nodes(), on_gpu=on_gpu)):
        raise ValueError("; ".join(missing))
    need = {"CPU": process_count(plan)}
    if on_gpu:
        need["GPU"] = plan.learner_ranks + plan.inference_ranks
    free, total = ray.available_resources(), ray.cluster_resources()
    for kind, count in need.items():
        if free.get(kind, 0) < count:
            used = total.get(kind, 0) - free.get(kind, 0)
            remedy = (
                f"set ray_kwargs.ray_init.num_cpus to at least {count + used:g}, which places processes and "
                "may be more than there are cores"
                if kind == "CPU"
                else "use fewer trainer.n_gpus_per_node or vla.inference.ranks"
            )
            raise ValueError(
                f"{plan.learner_ranks} learner ranks, {plan.env_workers} env workers and "
                f"{plan.inference_ranks} inference ranks need {count} {kind} of Ray, which has "
                f"{free.get(kind, 0):g} of {total.get(kind, 0):g} free; {remedy}"
            )


def start_env_workers(view: VerlView, settings: VerlSettings) -> list[Any]:
    """Start env workers, and return Ray's handles by rank; `initialise` builds their environments."""
    modes = ("train", "eval") if view.evaluates else ("train",)
    actor = ray.remote(load_class(workers.WORKERS_GROUP, "env")).options(
        num_cpus=1, resources=resources(view, "env"), **restarts(settings, "env")
    )
    sections = {mode: section(view, mode) for mode in modes}
    horizons = {mode: horizon(view, mode) for mode in modes}
    return [actor.remote(sections, settings, horizons, rank) for rank in range(settings.plan.env_workers)]


def start_inference_ranks(view: VerlView, settings: VerlSettings, *, on_gpu: bool) -> list[Any]:
    """Start inference ranks, and return Ray's handles by rank; `initialise` builds their policies."""
    actor = ray.remote(load_class(workers.WORKERS_GROUP, "inference")).options(
        num_cpus=1,
        num_gpus=int(on_gpu),
        resources=resources(view, "inference"),
        **restarts(settings, "inference"),
    )
    arguments = (view.model, view.first_weights, settings)
    return [actor.remote(*arguments, rank) for rank in range(settings.plan.inference_ranks)]


def restarts(settings: VerlSettings, group: str) -> dict[str, Any]:
    """Return Ray's options for the actors of a group: to restart dead ones, if the run may."""
    return RESTARTABLE_OPTIONS if group in settings.restartable else {}
