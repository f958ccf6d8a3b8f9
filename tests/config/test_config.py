import math
import re
from dataclasses import FrozenInstanceError, fields, replace
from itertools import product

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.config import (
    MODE_LEVELS,
    SKIP_KINDS,
    SKIPPING_MODES,
    AdvancedConfig,
    AsyncConfig,
    RolloutConfig,
    SkipConfig,
    StreamerConfig,
    SurviveConfig,
    TrainConfig,
    Weighting,
    preset_levels,
)
from rlinf_async.config.block import SCHEMAS
from rlinf_async.config.checked import VALUE_CHECKS, checked_config
from rlinf_async.config.removed import REMOVED_KEYS

LEVELS = {"train": TrainConfig, "rollout": RolloutConfig, "streamer": StreamerConfig}
BLOCKS = {**LEVELS, "skip": SkipConfig, "survive": SurviveConfig, "advanced": AdvancedConfig}


def parsed(text):
    return checked_config(yaml.safe_load(text)["async"])


def enabled(config):
    return tuple(config.levels[name] for name in LEVELS)


@pytest.mark.parametrize(
    ("mode", "levels"),
    [
        ("off", (False, False, False)),
        ("train", (True, False, False)),
        ("rollout", (False, True, False)),
        ("streamer", (False, False, True)),
        ("full", (True, True, True)),
    ],
)
def test_a_mode_presets_the_levels(mode, levels):
    assert enabled(checked_config({"mode": mode})) == levels


def test_a_bare_off_which_yaml_reads_as_false_means_off():
    config = parsed("async: {mode: off}")
    assert (config.mode, config.active) == ("off", False)


@pytest.mark.parametrize("block", [None, {}])
def test_without_a_block_everything_is_off(block):
    assert not checked_config(block).active


@pytest.mark.parametrize("mode", MODE_LEVELS)
@pytest.mark.parametrize("flags", list(product([False, True], repeat=3)))
def test_flags_given_explicitly_beat_every_preset(mode, flags):
    block = {name: {"enabled": flag} for name, flag in zip(LEVELS, flags, strict=True)}
    config = checked_config({"mode": mode, **block})
    assert enabled(config) == flags
    assert config.active == (any(flags) or mode in SKIPPING_MODES)


@pytest.mark.parametrize("mode", MODE_LEVELS)
@pytest.mark.parametrize("kind", SKIP_KINDS)
@pytest.mark.parametrize("flag", [False, True])
def test_a_kind_of_work_is_left_out_by_its_own_flag_before_the_preset(mode, kind, flag):
    kinds = checked_config({"mode": mode, "skip": {kind: flag}}).skip.kinds
    preset = dict.fromkeys(SKIP_KINDS, mode in ("lean", "full"))
    assert kinds == {**preset, kind: flag}


def test_lean_leaves_work_out_and_has_no_level():
    config = checked_config({"mode": "lean"})
    assert (config.active, enabled(config)) == (True, (False, False, False))
    assert not checked_config({"mode": "lean", "skip": False}).active


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("flag", [False, True])
def test_a_flag_in_the_place_of_a_block_is_the_flag_of_the_block(name, flag):
    assert checked_config({name: flag}) == AsyncConfig.from_mapping({name: {"enabled": flag}})
    explicit = {"mode": "full", name: flag}
    assert preset_levels(explicit) == set(LEVELS) - {name}


@pytest.mark.parametrize("flag", [False, True])
def test_a_flag_in_the_place_of_skip_is_every_kind(flag):
    asked = checked_config({"mode": "train", "skip": flag})
    assert set(asked.skip.kinds.values()) == {flag}


@pytest.mark.parametrize("mode", MODE_LEVELS)
@pytest.mark.parametrize("flags", list(product([False, True], repeat=3)))
def test_true_or_false_for_a_level_is_its_flag(mode, flags):
    short = {"mode": mode, **dict(zip(LEVELS, flags, strict=True))}
    written_out = {"mode": mode, **{level: {"enabled": short[level]} for level in LEVELS}}
    assert checked_config(short) == AsyncConfig.from_mapping(written_out)
    assert preset_levels(short) == preset_levels(written_out) == frozenset()


def test_a_level_without_its_flag_follows_the_preset():
    config = checked_config({"mode": "full", "streamer": {"micro_batch_size": 4}, "rollout": None})
    assert enabled(config) == (True, True, True)
    assert config.streamer.micro_batch_size == 4


def test_the_block_of_the_design_is_valid_as_it_stands():
    config = parsed(
        """
        async:
          mode: full
          train:    {enabled: true, max_staleness: 1, correction: decoupled}
          rollout:  {enabled: true, shards: auto, max_batch_size: auto, max_wait_ms: auto}
          streamer: {enabled: true, micro_batch_size: auto}
        """
    )
    assert config == checked_config({"mode": "full"})


KEYS = [("async", item.name) for item in fields(AsyncConfig)] + [
    (f"async.{block}", item.name) for block, schema in BLOCKS.items() for item in fields(schema)
]


def within(path, block):
    """`block` under `path`, as the content of the async block."""
    return block if path == "async" else {path.partition(".")[2]: block}


@pytest.mark.parametrize(("path", "key"), KEYS)
@pytest.mark.parametrize(
    "misspell",
    [
        lambda key: key[:-1],
        lambda key: key + "s",
        lambda key: key[1] + key[0] + key[2:],
        lambda key: key.upper()[0] + key[1:],
    ],
)
def test_a_misspelt_key_is_answered_with_the_nearest(path, key, misspell):
    wrong = misspell(key)
    with pytest.raises(ValueError, match=rf"unknown key {path}\.{wrong}; did you mean {path}\.{key}\?"):
        checked_config(within(path, {wrong: 1}))


@pytest.mark.parametrize("path", ["async", *(f"async.{block}" for block in BLOCKS)])
def test_a_key_like_no_other_is_answered_with_the_valid_ones(path):
    with pytest.raises(
        ValueError, match=rf"unknown key {path}\.zzz; valid keys: .*(mode|enabled|frames|restarts|_s)"
    ):
        checked_config(within(path, {"zzz": 1}))


@settings(deadline=None, max_examples=60)
@given(level=st.sampled_from(["async", *(f"async.{block}" for block in BLOCKS)]), key=st.text(max_size=12))
def test_no_unknown_key_is_accepted(level, key):
    if (level, key) in KEYS:
        return
    with pytest.raises(ValueError, match=r"unknown key| is gone: "):
        checked_config(within(level, {key: 1}))


def test_a_misspelt_mode_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"async.mode='ful' must be one of .*did you mean 'full'\?"):
        checked_config({"mode": "ful"})


@pytest.mark.parametrize(
    ("path", "block", "message"),
    [
        ("async.train", {"max_staleness": -1}, "async.train.max_staleness=-1 .*nearest: 0"),
        ("async.train", {"max_staleness": 1.5}, "async.train.max_staleness=1.5 must be a whole number"),
        ("async.train", {"max_staleness": True}, "async.train.max_staleness=True must be a whole number"),
        ("async.train", {"max_staleness": None}, "async.train.max_staleness=None"),
        ("async.train", {"enabled": "yes"}, "async.train.enabled='yes' must be true or false"),
        ("async.train", {"enabled": 1}, "async.train.enabled=1 must be true or false"),
        ("async.advanced", {"accept_bias": "no"}, "async.advanced.accept_bias='no'"),
        ("async.train", {"correction": "decouple"}, "did you mean 'decoupled'"),
        (
            "async.train",
            {"correction": None},
            "async.train.correction=null must be one of decoupled, tis, none",
        ),
        ("async.advanced", {"proximal": "log-linear"}, "did you mean 'loglinear'"),
        ("async.advanced", {"measure_ratios": 1}, "async.advanced.measure_ratios=1 must be true or false"),
        (
            "async.advanced",
            {"max_weight": 0},
            "async.advanced.max_weight=0 must be auto or a finite number above 0",
        ),
        ("async.advanced", {"max_weight": float("inf")}, "async.advanced.max_weight=inf"),
        ("async.advanced", {"max_weight": "2"}, "async.advanced.max_weight='2'"),
        ("async.rollout", {"shards": 0}, "async.rollout.shards=0 .*nearest: 1"),
        ("async.rollout", {"shards": "two"}, "async.rollout.shards='two'"),
        ("async.rollout", {"max_batch_size": 0}, "async.rollout.max_batch_size=0 .*nearest: 1"),
        ("async.rollout", {"max_batch_size": 8.0}, "async.rollout.max_batch_size=8.0"),
        ("async.rollout", {"max_wait_ms": -1}, "async.rollout.max_wait_ms=-1 .*nearest: 0"),
        ("async.rollout", {"max_wait_ms": 1e300}, "async.rollout.max_wait_ms=1e.300 .*nearest: 3600000"),
        ("async.rollout", {"max_wait_ms": "1"}, "async.rollout.max_wait_ms='1'"),
        ("async.rollout", {"max_wait_ms": "x" * 5000}, "async.rollout.max_wait_ms='x{70,80} ... must"),
        ("async.rollout", {"max_wait_ms": True}, "async.rollout.max_wait_ms=True"),
        ("async.rollout", {"max_wait_ms": float("inf")}, "async.rollout.max_wait_ms=inf"),
        ("async.rollout", {"max_wait_ms": float("nan")}, "async.rollout.max_wait_ms=nan"),
        ("async.rollout", {"enabled": None}, "async.rollout.enabled=None"),
        ("async.streamer", {"micro_batch_size": 0}, "async.streamer.micro_batch_size=0 .*nearest: 1"),
        ("async.advanced", {"normalization": "defered"}, "did you mean 'deferred'"),
        ("async.streamer", {"enabled": []}, r"async.streamer.enabled=\[\]"),
        ("async.advanced", {"deadline_s": 0}, "async.advanced.deadline_s=0 must be a finite number above 0"),
        ("async.advanced", {"deadline_s": "1h"}, "async.advanced.deadline_s='1h'"),
        ("async.advanced", {"deadline_s": None}, "async.advanced.deadline_s=None"),
        ("async.advanced", {"deadline_s": float("nan")}, "async.advanced.deadline_s=nan"),
        ("async", {"deterministic": "true"}, "async.deterministic='true' must be true or false"),
        ("async.advanced", {"stall_s": 0}, "async.advanced.stall_s=0 must be a finite number above 0"),
        ("async.advanced", {"balance": "task"}, "did you mean 'tasks'"),
        ("async", {"mode": None}, "async.mode=null must be one of"),
        ("async", {"mode": True}, "async.mode=True must be one of"),
        ("async", {"mode": ["full"]}, r"async.mode=\['full'\] must be one of"),
        ("async", {"train": 1}, "async.train=1 must be a block, true or false; nearest: async.train=true"),
        ("async", {"survive": 3}, "async.survive=3 must be a block; nearest: async.survive.env_restarts=3"),
        ("async.survive", {"env_restarts": -1}, "async.survive.env_restarts=-1 .*nearest: 0"),
        ("async.survive", {"process_restarts": 2.5}, "process_restarts=2.5 must be a whole number"),
        ("async.advanced", {"window_s": 0}, "async.advanced.window_s=0 must be a finite number above 0"),
        ("async.advanced", {"start_s": float("inf")}, "async.advanced.start_s=inf"),
        ("async.advanced", {"silent_s": -1}, "async.advanced.silent_s=-1"),
        ("async.advanced", {"step_s": "never"}, "step_s='never' must be auto or a finite number above 0"),
        ("async.advanced", {"step_s": 0}, "step_s=0 must be auto or"),
        ("async.advanced", {"non_finite": "refuze"}, "did you mean 'refuse'"),
        (
            "async.advanced",
            {"keep_checkpoints": 0},
            "keep_checkpoints=0 must be all or a whole number of at least 1",
        ),
        ("async.advanced", {"keep_checkpoints": "some"}, "keep_checkpoints='some' must be all or"),
        ("async", {"advanced": True}, "async.advanced=True must be a block$"),
        ("async", {"skip": "frames"}, "async.skip='frames' must be a block, true or false"),
        ("async", {"skip": {"frame": True}}, "did you mean async.skip.frames"),
        ("async", {"skip": {"frames": 1}}, "async.skip.frames=1 must be true or false"),
        ("async", {"rollout": [1]}, r"async.rollout=\[1\] must be a block"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(path, block, message):
    with pytest.raises(ValueError, match=message):
        checked_config(within(path, block))


def uncorrected(**train):
    return checked_config({"mode": "full", "train": {"correction": "none", **train}})


def test_training_off_policy_without_correction_is_refused_with_both_ways_out():
    with pytest.raises(ValueError, match=r"correction=decoupled, or also set async.advanced.accept_bias"):
        uncorrected(max_staleness=2)


def test_no_correction_is_accepted_when_said_twice():
    block = {"mode": "full", "train": {"correction": "none"}, "advanced": {"accept_bias": True}}
    assert checked_config(block).correction == "none"


@pytest.mark.parametrize("train", [{"max_staleness": 0}, {"enabled": False}])
def test_no_correction_is_accepted_when_there_is_nothing_to_correct(train):
    assert uncorrected(**train).train.correction == "none"


def test_the_bound_in_force_is_zero_while_level_1_is_off():
    bounds = [
        checked_config({"mode": mode, "train": {"max_staleness": 3}}).max_staleness for mode in MODE_LEVELS
    ]
    assert bounds == [0, 0, 3, 0, 0, 3]


def test_data_is_off_policy_when_level_1_is_on_and_its_bound_is_above_zero():
    assert checked_config({"mode": "train"}).off_policy
    assert not checked_config({"mode": "train", "train": {"max_staleness": 0}}).off_policy
    assert not checked_config({"mode": "rollout"}).off_policy


@pytest.mark.parametrize(
    ("correction", "given", "bound"),
    [
        ("decoupled", "auto", math.inf),
        ("decoupled", 3, math.inf),
        ("tis", "auto", 2.0),
        ("tis", 3, 3),
    ],
)
def test_weights_are_bounded_where_the_correction_bounds_them(correction, given, bound):
    block = {"mode": "full", "train": {"correction": correction}, "advanced": {"max_weight": given}}
    assert checked_config(block).weighting == Weighting(correction=correction, max_weight=bound)


def test_samples_of_the_policy_that_trains_are_not_weighted():
    assert checked_config({"mode": "rollout"}).weighting is None
    block = {"mode": "full", "train": {"correction": "none"}, "advanced": {"accept_bias": True}}
    assert checked_config(block).weighting is None


def test_the_correction_in_force_is_none_where_every_sample_is_on_policy():
    assert checked_config({"mode": "full", "train": {"correction": "tis"}}).correction == "tis"
    for block in ({"mode": "rollout"}, {"mode": "full", "train": {"max_staleness": 0}}):
        assert checked_config(block).correction == "none"


@pytest.mark.parametrize(
    "block",
    [
        {"mode": "full"},
        {"mode": "off"},
        {"mode": "train", "train": {"max_staleness": 0}},
        {"mode": "train", "streamer": {"enabled": True}},
    ],
)
def test_a_fixed_lag_needs_level_1_alone(block):
    with pytest.raises(ValueError, match=r"async.deterministic=true.*use async.mode=train"):
        checked_config({**block, "deterministic": True})
    assert checked_config({"mode": "train", "deterministic": True}).deterministic
    with pytest.raises(ValueError, match=r"balance=tasks.*use async.advanced.balance=exact"):
        checked_config({"mode": "train", "deterministic": True, "advanced": {"balance": "tasks"}})


@pytest.mark.parametrize(
    ("normalization", "epochs", "waits"),
    [("auto", 1, False), ("auto", 2, True), ("running", 8, False), ("deferred", 1, True)],
)
def test_a_batch_is_waited_for_where_streaming_could_hide_one_epoch_of_several(normalization, epochs, waits):
    assert AdvancedConfig(normalization=normalization).defers(epochs) == waits


def test_a_wait_is_given_in_milliseconds_and_used_in_seconds():
    assert RolloutConfig(max_wait_ms=250).max_wait == 0.25
    assert RolloutConfig().max_wait == 0.0


def test_a_config_is_frozen_and_checked_again_when_it_is_replaced():
    config = checked_config({"mode": "train"})
    with pytest.raises(FrozenInstanceError):
        config.train.max_staleness = 5
    with pytest.raises(ValueError, match="correction=none with max_staleness=1"):
        replace(config, train=replace(config.train, correction="none"))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_of_a_block_has_a_check(name):
    assert set(VALUE_CHECKS[name]) == {field.name for field in fields(SCHEMAS[name])}


def test_what_a_run_outlives_is_parsed_with_the_rest():
    config = checked_config({"mode": "full", "survive": {"env_restarts": 0}})
    assert config.survive == SurviveConfig(env_restarts=0)
    assert checked_config({"mode": "full", "survive": None}).survive == SurviveConfig()


@pytest.mark.parametrize("call", ["step", "reset"])
def test_a_step_or_a_reset_may_take_many_times_as_long_as_any_before_and_no_less_than_100_seconds(call):
    def limits(*longest, **advanced):
        return [getattr(AdvancedConfig(**advanced), f"{call}_limit")(one) for one in longest]

    assert limits(1, 6, 60) == [100, 120, 1200]
    assert limits(60, **{f"{call}_s": 3}) == [3]
    assert limits(0.0, start_s=500) == [500]  # the first may compile


# Keys and values that a former version had.


def block_of(name):
    """The `async` block that has the key, or the value, `name`."""
    path, _, value = name.partition("=")
    block = value or "anything"
    for key in reversed(path.split(".")[1:]):
        block = {key: block}
    return block


@pytest.mark.parametrize("name", REMOVED_KEYS)
def test_a_key_or_value_that_is_gone_is_refused_with_what_can_be_written_instead(name):
    with pytest.raises(ValueError, match=re.escape(f"{name} is gone: {REMOVED_KEYS[name]}")):
        checked_config(block_of(name))
    known = {f"{path}.{key}" for path, key in KEYS}
    assert set(re.findall(r"async\.[a-z_.]*[a-z_]", REMOVED_KEYS[name])) <= known


@pytest.mark.parametrize("value", [1e300, 10**400, 1.1e9], ids=["float", "whole", "decades"])
def test_seconds_that_no_clock_counts_are_refused_by_name(value):
    with pytest.raises(
        ValueError, match=r"^async\.advanced\.start_s=1.* must be a number up to 1000000000; near"
    ):
        checked_config({"advanced": {"start_s": value}})
