"""Checks an `env` section of `metaworld_task` before its run: an entry point of `rlinf_async.env_checks`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import did_you_mean, misspelt, shortened
from rlinf_async.core.sharding import nearest_divisor
from rlinf_async.extras import is_here
from rlinf_async.hosts.judge.reasons import Reason, override_reason
from rlinf_async.hosts.judge.table import COUNT_KIND, FLAG_KIND, NUMBER_KIND, TEXT_KIND, Key, Table, kind_of

ROWS = {
    row.name: row
    for row in (
        Key(name="task_name", kind=TEXT_KIND, required=True),
        Key(name="max_episode_steps", kind=COUNT_KIND, required=True),
        Key(name="action_repeat", kind=COUNT_KIND, null=5),
        Key(name="reward_kind", kind=kind_of("one of sparse, dense"), null="sparse"),
        Key(name="reward_scale", kind=NUMBER_KIND, null=1.0),
        Key(name="processes", kind=kind_of("a whole number of at least 0"), null=0),
        Key(name="image_size", kind=kind_of("a whole number from 16 to 1024"), nullable=True),
        Key(name="obs_stats", kind=TEXT_KIND, nullable=True),
        # A host completes the following ones.
        Key(name="seed", kind=kind_of("a whole number from 0 to 4294967295"), nullable=True),
        Key(name="group_size", kind=COUNT_KIND, nullable=True),
        Key(name="auto_reset", kind=FLAG_KIND, nullable=True),
        Key(name="ignore_terminations", kind=FLAG_KIND, nullable=True),
        Key(name="is_eval", kind=FLAG_KIND, null=False),
    )
}
"""The keys of `MetaWorldEnvSettings`; `null` is the default."""
USUAL_TASK = "button-press-topdown-v3"
"""The task of the demos, whose name is not looked up: the import of Meta-World takes seconds."""
SIZES = {"obs_dim": 39, "state_dim": 39, "action_dim": 4}
"""The sizes of a state and of an action, by the names that `POLICIES` have for them."""
POLICIES = ("gaussian_mlp", "mlp_policy", "smol_vla", "tiny_pi0")
"""Policies with such sizes, by `model_type`. In others, a key of such a name may be another size."""


def wrong(section: Mapping[str, Any], *, key: str, model: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons why Meta-World's environments cannot be built from `section` at `key`, or do not fit
    the policy of `model`, its keys by dotted names.
    """
    if not is_here("metaworld"):
        # Without `key`: it is one fault of this machine, whichever sections name the class.
        yield Reason(
            "env_class=metaworld_task needs Meta-World; install it: pip install 'rlinf-async[metaworld]'"
        )
        return
    reasons = list(_value_reasons(section, key))
    yield from reasons or _fact_reasons(section, key)
    for block in [name.removesuffix("model_type") for name, value in model.items() if value in POLICIES]:
        for setting, size in ((f"{block}{own}", size) for own, size in SIZES.items()):
            if (value := model.get(setting)) is not None and (type(value), value) != (int, size):
                yield override_reason(
                    f"{setting}={shortened(value)} does not fit env_class=metaworld_task",
                    f"{setting}={size}",
                )


def _value_reasons(section: Mapping[str, Any], key: str) -> Iterator[Reason]:
    rows = [replace(row, name=f"{key}.{name}") for name, row in ROWS.items()]
    # 0 stands for no pictures.
    cfg: Any = {name: value for name, value in section.items() if (name, value) != ("image_size", 0)}
    for part in reversed(key.split(".")):
        cfg = {part: cfg}
    yield from Table(rows, default_of={row.name: row.null for row in rows}.get).reasons(cfg)
    for name, value in section.items():
        if name not in ROWS and (near := misspelt(name, ROWS)):
            text = f"Meta-World does not read {key}.{name}={shortened(value)}; did you mean {near!r}?"
            yield Reason(text, f"~{key}.{name}")


def _fact_reasons(section: Mapping[str, Any], key: str) -> Iterator[Reason]:
    """Yield the values that have their kinds, and stand for nothing here."""
    task, stats = section["task_name"], section.get("obs_stats")
    if task != USUAL_TASK:
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS

        if task not in ALL_V3_ENVIRONMENTS:
            hint = did_you_mean(task, ALL_V3_ENVIRONMENTS)
            yield Reason(
                f"{key}.task_name={shortened(task)} is no task of Meta-World; take one such as push-v3{hint}"
            )
    if stats and not Path(stats).is_file():
        yield Reason(f"{key}.obs_stats={stats} does not exist; name a file of ObservationStats, or null")
    total = section.get("total_num_envs")
    for name in ("processes", "group_size"):
        number = section.get(name)
        if number and isinstance(total, int) and total > 0 and total % number:
            nearest = nearest_divisor(total, number)
            yield Reason(
                f"{key}.{name}={number} does not divide {key}.total_num_envs={total}; nearest: {nearest}",
                f"{key}.{name}={nearest}",
            )
