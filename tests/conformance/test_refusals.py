"""What environments give is held to what they have to give, and to what they gave first, on every host."""

import asyncio
from itertools import product

import numpy as np
import pytest
import torch

from rlinf_async.core.failures import ShardFailure
from tests.conformance.environments import CHUNK, Steady, altered
from tests.conformance.hosts import ENVS, HOSTS, host_or_skip


def put(name, value):
    """Gives `value`, or what it makes of what was given."""

    def alter(given):
        given[name] = value(given[name]) if callable(value) else value

    return alter


def show(**fields):
    def alter(given):
        shown = given["observation"]
        for name, value in fields.items():
            shown[name] = value(shown.get(name)) if callable(value) else value

    return alter


def hide(name):
    return lambda given: given["observation"].pop(name)


def statistic(value):
    def alter(given):
        given["info"]["episode"]["return"] = value

    return alter


def picture(rows):
    return torch.zeros(rows, 2, 2, dtype=torch.uint8)


WIDTH = f"[{ENVS}, {CHUNK}]"
REFUSED = {
    "rewards of one step": (put("rewards", lambda value: value[:, :1]), "rewards", "[4, 1]", WIDTH),
    "rewards without steps": (put("rewards", lambda value: value.sum(1)), "rewards", "[4]", WIDTH),
    "rewards twice": (put("rewards", lambda value: value.repeat(2, 1)), "rewards", "[8, 2]", WIDTH),
    "rewards of too few": (put("rewards", lambda value: value[:3].numpy()), "rewards", "[3, 2]", WIDTH),
    "no rewards": (put("rewards", None), "rewards", "as None", WIDTH),
    "rewards as texts": (put("rewards", [["a", "b"]] * ENVS), "rewards", "list", WIDTH),
    "ragged rewards": (put("rewards", [[1.0], [1.0, 2.0]] * 2), "rewards", "list", WIDTH),
    "one reward": (put("rewards", 1.0), "rewards", "[]", WIDTH),
    "complex rewards": (put("rewards", lambda value: value * 1j), "rewards", "Tensor", WIDTH),
    "terminations of one step": (
        put("terminations", lambda value: value[:, :1]),
        "terminations",
        "[4, 1]",
        WIDTH,
    ),
    "truncations of one step": (
        put("truncations", lambda value: value.numpy()[:, :1]),
        "truncations",
        "[4, 1]",
        WIDTH,
    ),
    "no truncations": (put("truncations", None), "truncations", "as None", WIDTH),
    "terminations as texts": (put("terminations", "no"), "terminations", "str", WIDTH),
    "terminations of nan": (
        put("terminations", lambda value: value * float("nan")),
        "terminations",
        "not finite",
        "true or false",
    ),
    "rewards of large whole numbers": (
        put("rewards", torch.full((ENVS, CHUNK), -(2**24) - 1, dtype=torch.int64)),
        "rewards",
        "int64 beyond 2**24",
        "float32 holds",
    ),
    "information as a text": (put("info", "fine"), "information", "str", "mapping"),
    "statistics of others": (statistic(torch.zeros(3)), "'return'", "[3]", "[4]"),
    "statistics as texts": (statistic(["a"] * ENVS), "'return'", "list", "[4]"),
    "statistics of none": (statistic(None), "'return'", "as None", "[4]"),
    "no observation": (put("observation", None), "observation", "as None", "mapping"),
    "an observation that is a tensor": (
        put("observation", torch.zeros(4, 3)),
        "observation",
        "Tensor",
        "mapping",
    ),
    "states of other width": (show(states=torch.zeros(ENVS, 2)), "'states'", "[4, 2]", "[4, 3]"),
    "states of others": (show(states=torch.zeros(3, 3)), "'states'", "[3, 3]", "4 environments"),
    "states of one more": (show(states=np.zeros((5, 3))), "'states'", "[5, 3]", "4 environments"),
    "whole states": (show(states=torch.zeros(ENVS, 3, dtype=torch.int64)), "'states'", "int", "float"),
    "states as texts": (show(states=["a"] * ENVS), "'states'", "list", "float [4, 3]"),
    "states as none": (show(states=None), "'states'", "None", "float [4, 3]"),
    "too few texts": (show(task_descriptions=["a"] * 3), "'task_descriptions'", "list [3]", "4 environments"),
    "a text for all": (show(task_descriptions="go"), "'task_descriptions'", "str", "list [4]"),
    "no states": (hide("states"), "without 'states'", "", "float [4, 3]"),
}
LATER = {
    "a new field": (show(extra=torch.zeros(ENVS)), "'extra'", "", "no such field"),
    "a new picture": (show(main_images=picture(ENVS)), "'main_images'", "", "no such field"),
    "a nested field": (
        show(states=lambda value: {"arm": value}),
        "'states'",
        "",
        "",
    ),
}


def plays(host, env_cls, **options):
    with host(env_cls) as playing:
        return playing.play(**options)


UNREAD = ("rlinf", "a new field")
"""RLinf shows its policies the fields that it knows."""


ONE_OF_EACH = (
    "rewards of one step",
    "terminations of one step",
    "truncations of one step",
    "information as a text",
    "statistics of others",
    "no observation",
    "states of other width",
    "no states",
    "a new field",
)
"""Every kind of output, for the hosts whose outputs go through the same contract as those of the first."""
BY_RESET = ("whole states", "states as texts", "states as none", "a text for all", "no states", *LATER)
"""What is refused as the first step has shown something else: the second step is the first that can be."""


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *(("local", what) for what in [*REFUSED, *LATER]),
        *(each for each in product(["workers", "rlinf"], ONE_OF_EACH) if each != UNREAD),
    ],
)
def test_what_differs_from_what_is_expected_is_refused_by_name_at_any_step(name, what):
    host = host_or_skip(name)
    alter, field, given, expected = (REFUSED | LATER)[what]
    for since in (2,) if what in BY_RESET else (1, 3):
        with pytest.raises(ShardFailure) as raised:
            plays(host, altered(alter, since=since))
        message = str(raised.value.error).removeprefix("ValueError: ")
        assert repr(raised.value.error).startswith("ForeignError('ValueError'")
        assert message.startswith("the environments of shard 1 (Strange) have given ")
        for part in (field, given, expected):
            assert part in message


@pytest.mark.parametrize("given", [None, torch.zeros(4, 3), "text", (1, 2, 3), [{}, {}, {}]])
def test_a_reset_gives_an_observation_and_information(host, given):
    class Wrong(Steady):
        def reset(self):
            return given

    with pytest.raises(ShardFailure) as raised:
        plays(host, Wrong)
    assert "by reset; expected was a pair" in str(raised.value.error)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "a None"),
        (torch.zeros(5), "a Tensor"),
        (({}, 1.0, False, {}), "a tuple of 4"),
        ([{}, 1, 2, 3, 4, 5], "a list of 6"),
    ],
)
def test_a_decision_gives_five_things(host, given, said):
    class Wrong(Steady):
        def chunk_step(self, actions):
            return given

    with pytest.raises(ShardFailure) as raised:
        plays(host, Wrong)
    assert f"{said} by chunk_step; expected was observations, rewards" in str(raised.value.error)


def test_fields_that_only_resets_show_are_shown_by_all_of_them(host):
    """What steps show is a thing of its own, but for the fields that both have."""
    shown = altered(lambda given: given["observation"].pop("task_descriptions", None), since=1)
    assert len(plays(host, shown, rollouts=2)) == 10

    class Once(Steady):
        def reset(self):
            observation, info = super().reset()
            if self.episode[0] == 2:
                del observation["states"]
            return observation, info

    with pytest.raises(ShardFailure) as raised:
        plays(host, Once, rollouts=2)
    assert "without 'states'; expected was float [4, 3] as at first" in str(raised.value.error)


class Grows(Steady):
    """Those that are built later show wider states."""

    built = 0

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        type(self).built += 1
        self.wide = type(self).built > 1

    def observe(self, seen, where="now"):
        states = seen["states"]
        return {**seen, "states": states.repeat(1, 2) if self.wide else states}


@pytest.mark.parametrize("rollouts", [0, 1])
def test_those_that_take_the_place_of_environments_that_have_worked_are_held_to_the_same(
    showing_host, rollouts, monkeypatch
):
    monkeypatch.setattr(Grows, "built", 0)

    async def replaced(shard, answer):
        await shard.start()
        for _ in range(rollouts):
            await shard.step(answer())
            await shard.finish()
        await shard.restart()
        return await shard.start()

    with showing_host(Grows) as playing:
        begun = replaced(playing.shard, playing.answer)
        if not rollouts:
            assert playing.read(asyncio.run(begun)).observation["states"].shape == (ENVS, 6)
            return
        with pytest.raises(ShardFailure) as raised:
            asyncio.run(begun)
    assert "float [4, 6]; expected was float [4, 3] as at first" in str(raised.value.error)


NAN = {
    "states": show(
        states=lambda value: value.index_put((torch.tensor(1), torch.tensor(0)), torch.tensor(float("nan")))
    ),
    "states of numpy": show(states=lambda value: np.where(np.arange(4)[:, None] == 1, np.nan, value.numpy())),
    "pictures": show(main_images=torch.full((ENVS, 2, 2), float("inf"))),
    "rewards": put("rewards", lambda value: value / 0 * 0),
    "rewards of numpy": put("rewards", lambda value: value.numpy() * np.inf),
    "rewards whose squares overflow": put("rewards", lambda value: value * 0 + 1e38),
    "rewards that only float64 holds": put("rewards", lambda value: value.double() * 1e300),
    "statistics": statistic(torch.tensor([1.0, float("nan"), 1.0, 1.0])),
}
NESTED = {
    "a mapping": show(camera={"left": {"depth": np.full((ENVS, 2), np.nan)}}),
    "a list": show(hands=[torch.zeros(2), torch.tensor([float("nan"), 1]), torch.zeros(2), torch.zeros(2)]),
    "a tuple of mappings": show(feet=tuple({"at": np.array([np.inf])} for _ in range(ENVS))),
    "a number for all": show(height=float("nan")),
}


def good(given):
    """What the fields with numbers that are not finite are otherwise."""
    shown = given["observation"]
    shown["main_images"] = torch.zeros(ENVS, 2, 2)
    shown |= {"camera": {"left": {"depth": np.zeros((ENVS, 2))}}, "hands": [torch.zeros(2)] * ENVS}
    shown |= {"feet": tuple({"at": np.zeros(1)} for _ in range(ENVS)), "height": 1.0}


def once(alter, since):
    """Fields with finite numbers, and from some step on others."""

    def change(given):
        good(given)
        given["observation"]["age"] = None
        if float(torch.as_tensor(given["observation"]["states"])[0, 2]) >= since:
            alter(given)

    return altered(change, since=0)


STEPS = {"reset": 0, "last step": 4}
CASES = [
    (name, what, step)
    for name, kinds in [*((name, NAN) for name in HOSTS), ("local", NESTED)]
    for what in kinds
    for step in STEPS
    if not (step == "reset" and ("rewards" in what or what == "statistics"))
]


@pytest.mark.parametrize(("name", "what", "step"), CASES)
def test_numbers_that_are_not_finite_are_the_environments_fault_before_a_policy_sees_them(name, what, step):
    strange = once((NAN | NESTED)[what], STEPS[step])
    with host_or_skip(name)(strange) as playing, pytest.raises(ShardFailure) as raised:
        playing.play()
    assert (raised.value.what, raised.value.reason) == ("not finite", "not finite")
    assert "the environments have given numbers that are not finite" in str(raised.value)


@pytest.mark.parametrize("what", ["states", "rewards"])
def test_a_run_may_be_told_to_stop_at_them_or_not_to_look(host, what):
    with (
        host(once(NAN[what], 1), non_finite="stop") as playing,
        pytest.raises(RuntimeError, match="non_finite=stop") as raised,
    ):
        playing.play()
    assert not isinstance(raised.value, ShardFailure)
    with host(once(NAN[what], 1), non_finite="off") as playing:
        playing.play()


def test_a_final_observation_is_looked_at_as_well(resetting_host):
    class Final(Steady):
        ends = 2

        def observe(self, seen, where="now"):
            return {**seen, "states": seen["states"] / (where == "now")}

    with resetting_host(Final) as playing, pytest.raises(ShardFailure) as raised:
        playing.play()
    assert "final_observation.states" in str(raised.value)


def test_environments_that_have_failed_so_are_built_anew_and_play_on(host):
    async def mended(playing):
        await playing.shard.start()
        with pytest.raises(ShardFailure):
            await playing.shard.step(playing.answer())
        await playing.shard.restart()
        playing.built[-1].decided = -99  # behaves for a while
        await playing.shard.start()
        return await playing.shard.step(playing.answer())

    with host(altered(put("rewards", lambda value: value[:, :1]))) as playing:
        output = playing.read(asyncio.run(mended(playing)))
    assert output.rewards.shape == (ENVS,)


@pytest.mark.parametrize("field", [1, None, ("states", 0)])
def test_fields_are_named_by_texts_at_any_depth(showing_host, field):
    """Policies are shown what several shards show as one batch, which is put together by names."""
    for shown in ({field: torch.zeros(ENVS)}, {"camera": {"left": {field: torch.zeros(ENVS)}}}):
        with (
            showing_host(altered(show(**{"camera": shown}), since=0)) as playing,
            pytest.raises(ShardFailure) as raised,
        ):
            playing.play()
        assert f"with a field named {field!r}; expected was a text" in str(raised.value.error)
