"""Whatever a config says, `explain` answers: with what a run would do, or with five lines of refusal at most.

What prepares a run answers the same. Each set of overrides is drawn by a seed of its own: keys of the host's
table, of the config, and near misses of both, with values of every type. A config is composed once for each
host; overrides are written into it.
"""

from __future__ import annotations

import io
import os
import pickle
import random
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

import ray
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from rlinf_async.compose import compose_config
from rlinf_async.core.config_keys import dotted
from rlinf_async.hosts.host import Host, load
from rlinf_async.hosts.judge.reasons import reasons_of
from rlinf_async.hosts.judge.table import Table
from tests.written import noting_writes

pytestmark = pytest.mark.usefixtures("aside")

SETS = int(os.environ.get("RLINF_ASYNC_RANDOM_OVERRIDES", "1000"))
"""Of all three hosts together; thousands find more than CI has time for."""
LONGEST = 5
"""Lines of an answer that is none."""
SHARES = {"local": 6, "rlinf": 3, "verl": 1}
"""Tenths of the sets; veRL's config of a thousand keys takes longest."""
CONFIGS = {"local": "local/point_reach", "rlinf": "metaworld_ppo_mlp", "verl": "verl_metaworld_ppo_mlp"}
ASYNC = (
    "mode",
    "deterministic",
    "train",
    "train.enabled",
    "train.max_staleness",
    "train.correction",
    "advanced.max_weight",
    "advanced.proximal",
    "rollout",
    "rollout.shards",
    "rollout.max_batch_size",
    "rollout.max_wait_ms",
    "streamer.enabled",
    "streamer.micro_batch_size",
    "advanced.normalization",
    "advanced.keep_checkpoints",
)
NUMBERS = (0, 1, 2, 3, 7, 64, -1, 10**9, 10**30, 0.5, 1.5, -0.2, 1e-4, float("nan"), float("inf"))
TEXTS = (
    "",
    "ten",
    "16",
    "auto",
    "full",
    "off",
    "grpo",
    "gae",
    "/dev/null/nowhere",
    "/dev/null/x",
    "???",
    "~",
)
STRANGE_TEXTS = ("x" * 300, "a\nb", "\0")
BLOCKS = ([], [1, "two", None], {}, {"a": {"b": [1, None]}}, {"enabled": True})
VALUES = (None, True, False, *NUMBERS, *TEXTS, *STRANGE_TEXTS, *BLOCKS)


def table_of(host: str) -> Table:
    if host == "local":
        from rlinf_async.hosts.local.config import TABLE
    elif host == "rlinf":
        from rlinf_async.hosts.rlinf.keys import TABLE
    else:
        from rlinf_async.hosts.verl.reasons import TABLE
    return TABLE


def misspelt(key: str, chance: random.Random) -> str:
    """A key with a letter left out, doubled or exchanged."""
    at = chance.randrange(len(key))
    if "." in key[at : at + 1]:
        return key
    letter = chance.choice(["", key[at] * 2, "x"])
    return f"{key[:at]}{letter}{key[at + 1 :]}".replace("..", ".").strip(".")


def overrides_of(seed: int, keys: list[str]) -> dict[str, object]:
    chance = random.Random(seed)
    chosen = {}
    for key in chance.sample(keys, chance.choice([1, 1, 1, 2, 2, 3, 5])):
        name = misspelt(key, chance) if chance.random() < 0.15 else key
        chosen[name] = chance.choice(VALUES)
    return chosen


def copied(cfg: DictConfig) -> DictConfig:
    """A copy, as `cfg.copy()` makes it in two to four times as long."""
    return pickle.loads(pickle.dumps(cfg))


def overridden(cfg: DictConfig, chosen: dict[str, object]) -> DictConfig | None:
    """The config with overrides; None for one that OmegaConf itself does not take."""
    changed = copied(cfg)
    with open_dict(changed):
        for key, value in chosen.items():
            try:
                OmegaConf.update(changed, key, value, force_add=True)
            except (OmegaConfBaseException, AttributeError, TypeError, ValueError):
                return None  # a key below a value, an index into a list
    return changed


def answer(explain: Callable[[DictConfig], None], cfg: DictConfig) -> str | None:
    """What is refused, as the command prints it; None for an answer."""
    try:
        explain(cfg)
    except OmegaConfBaseException as error:
        return str(error).splitlines()[0]
    except ValueError as error:
        return str(error)
    return None


def host_and_config(host: str) -> tuple[Host, DictConfig]:
    if host != "local":
        pytest.importorskip(host, reason=f"{host} is not installed")
    elif find_spec("verl"):
        pytest.skip("this host knows no framework: it is asked in the main environment")
    return load(host), compose_config(CONFIGS[host], [] if host == "local" else ["~warm_start"])


def keys_of(host: str, base: DictConfig) -> list[str]:
    """Those of the host's table, of a config and of the `async` block."""
    return sorted(
        {*table_of(host).names, *dotted(OmegaConf.to_container(base)), *(f"async.{name}" for name in ASYNC)}
    )


@pytest.mark.parametrize("host", CONFIGS)
def test_every_set_of_overrides_is_answered(host):
    adapter, base = host_and_config(host)
    keys = keys_of(host, base)
    console = Console(file=io.StringIO(), width=100)
    failures, accepted, refused = [], 0, 0
    explain = lambda changed: adapter.show(adapter.explain(changed), console)  # noqa: E731
    answer(explain, copied(base))  # libraries that are imported now may write caches of their own
    for seed in range(SETS * SHARES[host] // 10):
        chosen = overrides_of(seed, keys)
        cfg = overridden(base, chosen)
        if cfg is None:
            continue
        try:
            with noting_writes() as written:
                said = answer(explain, cfg)
        except Exception as error:  # noqa: BLE001 - whatever else is raised would be a traceback
            failures.append((seed, chosen, f"{type(error).__name__}: {error}"))
            continue
        if written:
            failures.append((seed, chosen, f"it has written: {written}"))
        accepted, refused = accepted + (said is None), refused + (said is not None)
        if said is not None and not 0 < len(said.strip().splitlines()) <= LONGEST:
            failures.append((seed, chosen, said))
    assert failures == []
    assert accepted > SETS // 100
    assert refused > SETS // 50


def refusal(ask: Callable[[DictConfig], None], cfg: DictConfig) -> tuple[list[str], Any]:
    """The reasons why a config is refused, and otherwise what is answered."""
    try:
        return [], ask(copied(cfg))
    except OmegaConfBaseException as error:
        return [str(error).splitlines()[0]], None
    except ValueError as error:
        return [reason.text for reason in reasons_of(error)], None


@pytest.mark.parametrize("host", CONFIGS)
def test_a_run_is_refused_for_what_explain_says(host, monkeypatch):
    """RLinf's `explain` is also for other machines: what is not on this one is a remark of it."""
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    adapter, base = host_and_config(host)
    keys = keys_of(host, base)
    differing, refused = [], 0
    for seed in range(max(5, SETS * SHARES[host] // 100)):
        chosen = overrides_of(seed, keys)
        cfg = overridden(base, chosen)
        if cfg is None:
            continue
        said, facts = refusal(adapter.explain, cfg)
        with noting_writes() as written:
            before, _ = refusal(adapter.prepare, cfg)
        assert not before or not written, (seed, chosen, before, written)
        remarks = " ".join((facts or {}).get("remarks", []))
        further = [reason for reason in before if reason not in said and reason not in remarks]
        if set(said) - set(before) or (further and not said):
            differing.append((seed, chosen, said, before))
        refused += bool(said)
    assert differing == []
    assert refused
