"""Which environments can be reset ahead, and whether they begin where they would have."""

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts import tasks
from rlinf_async.hosts.exactness import rollout_exactness
from rlinf_async.hosts.resets import Turns, cannot_reset_ahead, draws_beforehand, same_draws

AHEAD = AsyncConfig.from_mapping({"mode": "full", "advanced": {"reset_ahead": True}})
FULL = AsyncConfig.from_mapping({"mode": "full"})


class Told:
    def take_on(self, seed_offset, rollout):
        pass


@pytest.fixture(autouse=True)
def classes(monkeypatch):
    monkeypatch.setattr(tasks, "load_class", lambda _, name: {"told": Told, "other": object}[name])


def reasons(asynchrony=AHEAD, **section):
    return [reason.text for reason in cannot_reset_ahead({"auto_reset": False, **section}, asynchrony)]


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"auto_reset": True}, "env.train.auto_reset=True: episodes begin within a rollout"),
        ({"env_type": "realworld"}, "env.train.env_type=realworld: there is one robot"),
    ],
)
def test_what_cannot_be_reset_ahead_is_refused_with_its_reason(section, why):
    (said,) = reasons(**section)
    assert why in said
    assert "async.advanced.reset_ahead=false" in said
    assert reasons(FULL, **section) == []


def test_simulators_may_be_reset_ahead():
    assert reasons(env_type="libero") == []


@pytest.mark.parametrize(
    ("section", "same"),
    [
        ({"env_type": "libero", "use_fixed_reset_state_ids": True}, True),
        ({"env_type": "libero", "use_fixed_reset_state_ids": False}, False),
        ({"env_type": "maniskill", "use_fixed_reset_state_ids": False}, True),
        ({"env_type": "metaworld", "use_fixed_reset_state_ids": True}, False),
        ({"env_type": "libero", "env_class": "told"}, True),
        ({"env_type": "libero", "env_class": "other", "use_fixed_reset_state_ids": True}, False),
    ],
)
def test_rollouts_begin_where_they_would_have_if_draws_can_be_left_out(section, same):
    assert same_draws(section) == same
    said = rollout_exactness(AHEAD, model="mlp", shares="", train=section)
    assert said.startswith("exact (the same trajectories in distribution")
    assert ("are of another stream" in said) == (not same)
    assert "stream" not in rollout_exactness(FULL, model="mlp", shares="", train=section)


def asked(section, *, turns):
    """What is called before each reset; `turns` are the rollouts that are left out before it."""
    calls, of = [], Turns(section, 5)
    for left_out in turns:
        for _ in range(left_out):
            of.skip()
        of.begin(lambda name: lambda *given: calls.append((name, *given)))
    return calls


def test_an_environment_that_can_be_told_is_told_the_number_of_every_rollout():
    section = {"env_class": "told"}
    assert asked(section, turns=(0, 1, 1)) == [("take_on", 5, 0), ("take_on", 5, 2), ("take_on", 5, 4)]
    assert asked(section, turns=(1, 1)) == [("take_on", 5, 1), ("take_on", 5, 3)]


def test_an_environment_that_draws_beforehand_draws_once_for_every_rollout_that_it_leaves_out():
    section = {"env_type": "libero", "use_fixed_reset_state_ids": True}
    assert asked(section, turns=(0, 1, 2)) == [("update_reset_state_ids",)] * 3
    assert asked({"env_type": "libero"}, turns=(1, 1)) == []


def test_rlinfs_environments_draw_beforehand_what_their_resets_begin_with():
    """Of the RLinf that is here: what this package says of them is in their sources."""
    rlinf = pytest.importorskip("rlinf.envs", reason="RLinf is not installed")
    from pathlib import Path

    folder = Path(rlinf.__file__).parent
    assert draws_beforehand({"env_type": "libero", "use_fixed_reset_state_ids": True})
    libero = (folder / "libero" / "libero_env.py").read_text()
    assert "self.reset_state_ids if self.use_fixed_reset_state_ids else None" in libero
    maniskill = (folder / "maniskill" / "maniskill_env.py").read_text()
    assert '{"episode_id": self.reset_state_ids}' in maniskill
    assert "seed = self.seed" in maniskill
