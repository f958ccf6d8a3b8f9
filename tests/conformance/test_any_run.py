"""Whole runs of the local host, with its policy and its learner, of environments that raise or give anything.

Unlike in `test_state_machine` nothing is virtual: threads are threads, and what a hostile value does beyond
the border, to the policy, the recorder or the learner, is seen.
"""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import EnvironmentsFailed, PolicyFailure
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.hosts.local import LocalSettings, LocalTrainer, declared
from rlinf_async.loops import env_restarts
from tests.conformance.environments import Steady
from tests.conformance.hostile_values import alterations
from tests.conformance.test_local_runs import Linear
from tests.hostile_errors import ALL_RAISED

pytestmark = pytest.mark.timeout(900)
SHARDS, ENVS, HORIZON, BATCHES = 2, 4, 2, 2
METHODS = ("build", "reset", "step", "finish", "close")

acts = st.dictionaries(
    st.tuples(st.integers(0, SHARDS - 1), st.sampled_from(METHODS), st.integers(1, 6)),
    st.one_of(st.sampled_from(ALL_RAISED), alterations()),
    max_size=6,
)
"""What some calls come to, by shard, method and number of the call; all others work."""


def hostile(script):
    counts, lock = Counter(), threading.Lock()

    class Hostile(Steady):
        def __init__(self, *given, **named):
            super().__init__(*given, **named)
            self.asked("build")

        def asked(self, method, right=None):
            with lock:
                counts[self.place, method] += 1
                act = script.get((self.place, method, counts[self.place, method]))
            if act is None:
                return right
            if hasattr(act, "fail"):
                act.fail()
            return right if right is None else act(right)

        def reset(self):
            return self.asked("reset", super().reset())

        def chunk_step(self, actions):
            return self.asked("step", super().chunk_step(actions))

        def update_reset_state_ids(self):
            self.asked("finish")

        def close(self):
            self.asked("close")

    return Hostile


def run_of(budget, mode):
    asynchrony = {"mode": mode, "survive": {"env_restarts": budget}}
    if mode == "full":
        asynchrony |= {"rollout": {"shards": 1}, "advanced": {"normalization": "running"}}
    samples = SHARDS * ENVS * HORIZON
    return LocalSettings(
        asynchrony=AsyncConfig.from_mapping(asynchrony),
        total_envs=SHARDS * ENVS,
        env_workers=SHARDS,
        horizon=HORIZON,
        batches=BATCHES,
        global_batch_size=samples,
        micro_batch_size=samples,
    )


runs = given(script=acts, budget=st.sampled_from((0, 2, 100)), mode=st.sampled_from(("off", "full")))


@settings(max_examples=40, derandomize=True)
@runs
def test_a_run_goes_on_or_ends_with_one_sentence_that_names_shard_and_cause(script, budget, mode):
    goes_on_or_ends(script, budget, mode)


@pytest.mark.nightly
@settings(max_examples=300)
@runs
def test_and_many_more_do(script, budget, mode):
    goes_on_or_ends(script, budget, mode)


def goes_on_or_ends(script, budget, mode):
    asked, faults, ended = run_of(budget, mode), [], None
    with (
        mock.patch.object(declared, "load_class", return_value=hostile(script)),
        mock.patch.object(env_restarts, "RestartBudget", partial(RestartBudget, first_wait_s=0.0)),
    ):
        environments = declared.environments_of(OmegaConf.create({"env": {"env_class": "any"}}), asked)
        trainer = LocalTrainer(
            asked, environments, policy=lambda **_: declared.DeclaredPolicy(Linear()), on_fault=faults.append
        )
        try:
            result = trainer.run()
        except Exception as error:  # noqa: BLE001 whatever it is, it is looked at below
            ended = error
    ledger = trainer.ledger
    assert ledger.produced == ledger.trained + ledger.in_flight + ledger.refused.total()
    assert not [each for each in threading.enumerate() if each.name.startswith(("shard-", "infer", "learn"))]
    assert all(fault.shard in range(SHARDS) for fault in faults)
    if ended is None:
        assert (ledger.trained, ledger.in_flight) == (BATCHES * SHARDS * ENVS, 0)
        assert all(torch.isfinite(weights).all() for weights in result.weights.values())
    elif isinstance(ended, PolicyFailure):
        # Of what environments show first nothing is known, but by the policy, which may want something else.
        assert str(ended).startswith("the policy has failed on inference rank 0: ")
        first = {
            act for (_, method, call), act in script.items() if method in ("reset", "step") and call <= 2
        }
        assert any(not hasattr(act, "fail") for act in first)
    else:
        assert type(ended) is EnvironmentsFailed, ended
        assert str(ended).startswith("the environments of shard ")
