"""The allowed values of each key of a local config; no other key is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from rlinf_async.core.names import nearest
from rlinf_async.hosts.kit.keys import Key, Table, shortened
from rlinf_async.hosts.kit.kinds import Anything, Block, Flag, Kind, Names, Real, Text, Whole
from rlinf_async.hosts.kit.synonyms import counterparts
from rlinf_async.hosts.reasons import Reason

COUNT, POSITIVE, SHARE = Whole(1), Real(above=0), Real(least=0, most=1)
SETTING_KINDS: Mapping[str, Kind] = {
    "algorithm": Names(("ppo", "grpo")),
    "total_envs": COUNT,
    "env_workers": COUNT,
    "inference_ranks": COUNT,
    "horizon": COUNT,
    "rollout_epochs": COUNT,
    "group_size": COUNT,
    "batches": COUNT,
    "global_batch_size": COUNT,
    "micro_batch_size": COUNT,
    "update_epoch": COUNT,
    "gamma": SHARE,
    "lam": SHARE,
    "clip": POSITIVE,
    "value_clip": POSITIVE,
    "lr": POSITIVE,
    "value_lr": POSITIVE,
    "clip_grad": POSITIVE,
    "hidden": COUNT,
    "seed": Whole(0, 2**32 - 1),
    "horizon_ends": Flag(),
    "weighting": Names(("sample", "episode")),
}
"""The fields of `LocalSettings` that a config may hold in its block `settings`."""


def _open(*names: str) -> Iterator[Key]:
    for name in names:
        yield Key(name=name)


TABLE = Table(
    (
        Key(name="run_dir", kind=Text("the place of the run's records"), required=True),
        Key(name="env", kind=Block()),
        Key(name="model", kind=Block()),
        Key(name="settings", kind=Block()),
        Key(name="env.env_class", kind=Text()),
        Key(name="env.auto_reset", kind=Flag()),
        Key(name="env.max_episode_steps", kind=COUNT),
        Key(name="model.model_type", kind=Text()),
        *(Key(name=f"settings.{name}", kind=kind) for name, kind in SETTING_KINDS.items()),
        *_open("async*", "defaults", "env.*", "host", "hydra*", "model.*"),
    )
)
"""Every key of a local config; a setting that is absent has its default, and null counts as absent."""


def malformed(cfg: Mapping[str, Any]) -> list[Reason]:
    """Values of `cfg` (plain data) that are none of their key's kind."""
    block = cfg.get("settings")
    given = block if isinstance(block, Mapping) else {}
    nulls = [
        Reason(f"settings.{name}=null must be {SETTING_KINDS[name].words}", f"~settings.{name}")
        for name, value in given.items()
        if value is None and name in SETTING_KINDS
    ]
    return [*TABLE.malformed(cfg), *nulls]


def wrong_setting(name: str, value: Any, *, prefix: str = "") -> Reason | None:
    """Why `value` cannot be that of a field of `LocalSettings`."""
    if name in SETTING_KINDS and not isinstance(SETTING_KINDS[name], Anything):
        return Key(name=name, kind=SETTING_KINDS[name], required=True).wrong(f"{prefix}{name}", value)
    return None


def unread(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """The keys of `cfg` (plain data) that nothing reads, with those that were meant."""
    brought = entry_points(group="rlinf_async.preparations").names
    for key, value in TABLE.unknown(cfg).items():
        section, _, name = key.partition(".")
        if section in brought:
            continue
        if section == "settings":
            near = nearest(name, SETTING_KINDS)
            hint = f"; did you mean settings.{near}?" if near else ""
            yield Reason(f"unknown key {key}{hint}", f"~{key}")
            continue
        other = next((one for one in counterparts(key) if TABLE.find(one)), None) or TABLE.nearest(key)
        hint = f"; use {other}" if other else "; remove it"
        yield Reason(f"a run of the local host does not read {key}={shortened(value)}{hint}", f"~{key}")
