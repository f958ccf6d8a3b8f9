"""Each key set to null, to a wrong type, with a block of the user's own beside it: a sentence, or a run.

And each remedy that a refusal prints is applied: the refusal is gone then, and no remedy leads back to it. A
config is composed once for each host; keys are written into it.
"""

from __future__ import annotations

import io
import random
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from rlinf_async.core.config_keys import dotted, lookup
from rlinf_async.hosts.host import Host
from rlinf_async.hosts.judge.reasons import Reason, reasons_of
from tests.hosts.test_any_overrides import LONGEST, copied, host_and_config, keys_of, overridden

pytestmark = pytest.mark.usefixtures("aside")

SAMPLE_SEED = 52
SAMPLES = {"local": None, "rlinf": 20, "verl": 15}
"""Keys that are tried in CI, None for all of them; `make nightly` tries all on every host."""
CASES = [
    *(pytest.param(host, count, id=host) for host, count in SAMPLES.items()),
    *(
        pytest.param(host, None, id=f"{host}-all", marks=pytest.mark.nightly)
        for host in SAMPLES
        if SAMPLES[host]
    ),
]
LONGEST_LINE = 600
"""Characters; the longest lines list all names of environments."""
MOST_STEPS = 6
"""Remedies that are applied one after the other to what is refused next."""
WRONG = ("ten", 2.5, -3, True, [1, "two"], {"a": {"b": None}}, "x" * 5000, float("nan"), "")
OWN_WORDS = ("lr", "seed", "name", "time", "mode", "batch_size", "train", "model", "env", "rollout_epoch")


def blocks_of(cfg: DictConfig) -> list[str]:
    """The sections of a config, by dotted names."""
    keys = dotted(OmegaConf.to_container(cfg))
    return sorted({key.rsplit(".", depth)[0] for key in keys for depth in range(1, key.count(".") + 1)})


def keys_to_try(host: str, base: DictConfig, count: int | None) -> list[tuple[int, str]]:
    """The numbered keys and sections of a host, or a sample of `count` of them."""
    keys = list(enumerate(sorted({*keys_of(host, base), *blocks_of(base)})))
    return keys if count is None else sorted(random.Random(SAMPLE_SEED).sample(keys, count))


def changes_of(key: str, number: int) -> Iterator[dict[str, object]]:
    """Null, values of types that are wrong for most keys, and a block of the user's own with that name."""
    yield {key: None}
    yield {key: WRONG[number % len(WRONG)]}
    yield {key: WRONG[(number // 2 + 4) % len(WRONG)]}
    section = ("hparams", "exp", "vars", "wandb", "my")[number % 5]
    yield {f"{section}.{key.rpartition('.')[2]}": 3, f"{section}.{OWN_WORDS[number % len(OWN_WORDS)]}": 1}


def reasons(adapter: Host, cfg: DictConfig) -> list[Reason] | None:
    """The reasons against a config, None if it is explained; anything but a refusal is raised."""
    try:
        adapter.show(adapter.explain(copied(cfg)), Console(file=io.StringIO(), width=100))
    except OmegaConfBaseException as error:
        return [Reason(str(error).splitlines()[0])]
    except ValueError as error:
        refusal = error
    else:
        return None
    said = str(refusal).strip().splitlines()
    assert 0 < len(said) <= LONGEST, said
    assert max(map(len, said)) <= LONGEST_LINE, said
    return list(reasons_of(refusal))


@pytest.mark.parametrize(("host", "count"), CASES)
def test_every_key_may_be_null_or_wrong_and_have_a_strange_block_beside_it(host, count):
    adapter, base = host_and_config(host)
    failures, refused, accepted = [], 0, 0
    for number, key in keys_to_try(host, base, count):
        for change in changes_of(key, number):
            own = any(name.partition(".")[0] in ("hparams", "exp", "vars", "wandb", "my") for name in change)
            if (cfg := overridden(base, change)) is None:
                continue
            try:
                said = reasons(adapter, cfg)
            except Exception as error:  # noqa: BLE001 - whatever else is raised would be a traceback
                failures.append((change, f"{type(error).__name__}: {error}"[:300]))
                continue
            refused, accepted = refused + (said is not None), accepted + (said is None)
            if own and said:
                failures.append((change, said[0].text))
    assert failures == []
    assert refused > 10
    assert accepted > 10


def applied(cfg: DictConfig, overrides: str) -> DictConfig:
    """The config with overrides as they are printed, by Hydra's grammar."""
    changed = copied(cfg)
    with open_dict(changed):
        for override in OverridesParser.create().parse_overrides(shlex.split(overrides)):
            key = override.key_or_group
            section, _, name = key.rpartition(".")
            if override.type is OverrideType.DEL:
                around = OmegaConf.select(changed, section) if section else changed
                assert name in around, f"{overrides} removes what is not there"
                del around[name]
                continue
            if override.type is OverrideType.CHANGE:
                there = lookup(OmegaConf.to_container(changed), section) if section else {}
                assert isinstance(there, Mapping), f"{overrides} changes a key of no section"
            OmegaConf.update(changed, key, override.value(), force_add=True)
    return changed


def follow(adapter: Host, cfg: DictConfig) -> list[str]:
    """Apply the remedies of what is refused, and of what is refused then; return those that did not help."""
    gone: list[str] = []
    said = reasons(adapter, cfg)
    for _ in range(MOST_STEPS):
        remedy = next((reason for reason in said or () if reason.override), None)
        if remedy is None:
            return []
        gone.append(remedy.text)
        cfg = applied(cfg, remedy.override)
        said = reasons(adapter, cfg)
        if back := [reason.text for reason in said or () if reason.text in gone]:
            return [f"{remedy.override} does not help against: {text}" for text in back]
    return [f"remedies have no end: {gone}"]


FAULTS: dict[str, list[dict[str, Any]]] = {
    "local": [
        {"settings.gamma": 2},
        {"settings.horizon": None},
        {"settings.bathces": 3},
        {"env.auto_reset": True},
        {"algorithm.gamma": 0.9},
        {"async.advanced.stall_s": 3},
    ],
    "rlinf": [
        {"weight_syncer": None},
        {"env.eval": None, "runner.val_check_interval": 2},
        {"runner.save_interval": 3, "runner.val_check_interval": 2},
        {"actor.optim.lr_scheduler": "cosine"},
        {"actor.optim.lr_warmup_steps_ratio": 0.1},
        {"algorithm.gamma": 1.5},
        {"actor.optim.weight_decay": None},
        {"runner.enable_decoupled_mode": True},
        {"runner.weight_sync_interval": 2},
        {"rollout.collect_transitions": True},
        {"rollout.expert_model.model_path": "x"},
        {"actor.fsdp_config.sharding_strategy": "hybrid_shard", "actor.fsdp_config.strategy": "fsdp"},
        {"actor.model.is_lora": True},
        {"actor.model.add_value_head": False},
        {"actor.global_batch_size": 7},
        {"reward.use_reward_model": True},
        {"cluster.profiling": {"enabled": True}},
    ],
    "verl": [
        {"actor_rollout_ref.actor.strategy": "fsdp"},
        {"actor_rollout_ref.actor.ppo_epochs": None},
        {"actor_rollout_ref.actor.use_kl_loss": True},
        {"actor_rollout_ref.actor.clip_ratio": 2},
        {"actor_rollout_ref.actor.ppo_mini_batch_size": 7},
        {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 7},
        {"algorithm.adv_estimator": "remax"},
        {"algorithm.adv_estimator": "grpo", "env.train.auto_reset": True},
        {"env.eval": None, "trainer.test_freq": 2},
        {"trainer.critic_warmup": 3},
        {"trainer.resume_mode": "resume_path", "trainer.resume_from_path": "/dev/null/nowhere"},
        {"trainer.logger": ["mlflow"]},
        {"vla.model.add_value_head": False},
        {"ray_kwargs.ray_init.num_cpus": 1},
        {"trainer.nothing": 3},
        {"actor_rollout_ref.actor.optim._target_": "os.system"},
    ],
}
"""Faults with a remedy each; the first of each is met before others are."""


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("actor.fsdp_config.strategy", "x" * 5000, "veRL refuses this config: strategy xxx"),
        ("model.lora.rank", [1, "two"], "actor_rollout_ref.model.lora.rank=[1, 'two'] must be a whole"),
        ("actor.profiler.ranks", None, "veRL refuses this config: Profiler ranks must be of type list"),
    ],
)
def test_what_no_row_of_ours_judges_verl_judges_in_a_short_sentence(key, value, said):
    adapter, base = host_and_config("verl")
    (reason,) = reasons(adapter, overridden(base, {f"actor_rollout_ref.{key}": value}))
    assert reason.text.startswith(said)


@pytest.mark.parametrize(("host", "count"), CASES)
def test_every_remedy_that_is_printed_helps(host, count):
    adapter, base = host_and_config(host)
    changes = [*FAULTS[host]]
    for number, key in keys_to_try(host, base, count):
        changes += list(changes_of(key, number))[:2]
    failures = []
    for change in changes:
        if (cfg := overridden(base, change)) is None:
            continue
        try:
            said = reasons(adapter, cfg)
            if any(reason.override for reason in said or ()):
                failures += [(change, text[:400]) for text in follow(adapter, cfg)]
            elif change in FAULTS[host]:
                failures.append((change, "no remedy is printed"))
        except Exception as error:  # noqa: BLE001 - told below, with the change
            failures.append((change, f"{type(error).__name__}: {error}"[:300]))
    assert failures == []
