"""Each rule speaks on its numbers, with them, and is silent on good ones."""

from dataclasses import fields, replace

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.lab.report.advice import ADVICE_RULES, Facts, advise
from rlinf_async.lab.report.advice.machine import RLINF_KEYS, VERL_KEYS, Keys, Machine
from rlinf_async.lab.report.measures import Measures
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.observe.load import Load
from tests.lab.report.making import PLAN, write_run

ON = {"train": True, "rollout": True, "streamer": True}
GOOD = Measures(
    steps=10,
    busy={"env": 0.8, "inference": 0.3, "learner": 0.6},
    busiest={"env": 0.6, "inference": 0.3, "learner": 0.6, "publication": 0.002},
    staleness=1.0,
    staleness_max=1.0,
    batch_size=4.0,
    refused={},
    publication_s=0.01,
    shares={
        "env": {"stepping": 0.6, "waiting for actions": 0.15, "at the gate": 0.05},
        "inference": {"in a forward pass": 0.3, "waiting for requests": 0.7},
        "learner": {"training": 0.6, "copying weights": 0.002, "waiting for trajectories": 0.1},
    },
    forward_s=0.02,
    ask_s=0.03,
    queued_s=0.005,
    full_batches=0.1,
    beside_micro_batches=0.05,
    driver={"evaluate": 0.0, "save": 0.0},
)
MACHINE = Machine(cores=16, on_cpu=False, simulators="processes", processes=None)
FACTS = Facts(
    measures=GOOD,
    machine=MACHINE,
    keys=RLINF_KEYS,
    levels=ON,
    plan=ShardPlan(**PLAN),
    max_staleness=1,
    max_batch_size=4,
    max_wait_s=0.0,
    update_epoch=1,
    advantage="gae",
    deterministic=False,
    corrects=True,
    proximal="recomputed",
    normalization="auto",
    weight_syncer="bucket",
    bucket_dtype=None,
    precision="fp32",
    evaluates_every=5,
    saves_every=10,
)
MEASURES = {field.name for field in fields(Measures)}
PLACES = {field.name for field in fields(Machine)}


def facts(**changes):
    """Good ones with changes; `part__word` is a share."""
    shares = {part: dict(words) for part, words in GOOD.shares.items()}
    busiest = dict(GOOD.busiest)
    for name in [name for name in changes if "__" in name]:
        part, word = name.split("__")
        (busiest if word == "busiest" else shares[part])[part if word == "busiest" else WORDS[word]] = (
            changes.pop(name)
        )
    own = {name: changes.pop(name) for name in list(changes) if name in MEASURES}
    measures = replace(GOOD, **{"shares": shares, "busiest": busiest, **own})
    machine = replace(MACHINE, **{name: changes.pop(name) for name in list(changes) if name in PLACES})
    levels = {**ON, **{name: changes.pop(name) for name in list(changes) if name in ON}}
    return replace(FACTS, measures=measures, machine=machine, levels=levels, **changes)


WORDS = {
    "asks": "waiting for actions",
    "steps": "stepping",
    "gate": "at the gate",
    "idle": "waiting for requests",
    "waits": "waiting for trajectories",
    "trains": "training",
    "copies": "copying weights",
    "resets": "resetting",
}
STREAMS = {"streamer": False, "learner__waits": 0.45, "learner__trains": 0.5, "env__gate": 0.3}
"""What asks for level 3."""

MANY = ShardPlan(**{**PLAN, "total_envs": 64, "shards_per_worker": 64})
CROWDED = {
    "plan": MANY,
    "ask_s": 0.123,
    "queued_s": 0.002,
    "forward_s": 0.013,
    "env__steps": 0.2,
    "env__asks": 0.7,
    "inference__idle": 0.8,
}
"""Sixty-four shards of one worker: a decision of 158 ms has a step of 35 ms, and 15 ms of inference."""


def test_good_numbers_ask_for_nothing():
    assert advise(FACTS) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"train": False, "max_staleness": 0, "learner__waits": 0.41, "env__gate": 0.3},
            "The learner waits for trajectories 41% of the time and shards wait at the gate 30%, one after "
            "the "
            "other; level 1 lets rollouts go on while the learner trains. Change async.train.enabled from "
            "false "
            "to true (samples are then up to one policy version old, and corrected for it).",
        ),
        (
            {"max_staleness": 0, "staleness_max": 0.0, "learner__waits": 0.41, "env__gate": 0.3},
            "Change async.train.max_staleness from 0 to 1",
        ),
        (
            {"rollout": False, "env__asks": 0.35},
            "Shards wait for actions 35% of the time, and inference is idle 70%, because it waits for all "
            "shards "
            "in flight; level 2 answers whoever asks. Change async.rollout.enabled from false to true.",
        ),
        (
            STREAMS,
            "The learner waits for whole batches 45% of the time and then trains 50%; level 3 trains on "
            "what has "
            "arrived. Change async.streamer.enabled from false to true",
        ),
        (
            {"normalization": "deferred", "learner__waits": 0.3, "env__gate": 0.3},
            "Change async.advanced.normalization from deferred to running (approximate",
        ),
        ({"learner__waits": 0.3, "env__gate": 0.25}, "Change async.train.max_staleness from 1 to 2 (older"),
        (
            {"env__asks": 0.3, "inference__idle": 0.61},
            "Inference is idle 61% of the time while shards wait for actions 30%; of more and smaller "
            "shards, some "
            "step while others are answered. Change async.rollout.shards from 2 to 4.",
        ),
        (
            CROWDED,
            "An answer takes 123 ms, of which 15 ms are the queue and the forward pass: 64 shards share the "
            "Python of an env worker, and 68% of a decision is the wait for it; fewer and larger shards ask "
            "it less often. Change async.rollout.shards from 64 to 16 (environments",
        ),
        (
            {"env__busiest": 0.93},
            "Environments bound the run, and its busiest shard works 93% of the time, while 10.3 of 16 "
            "processor cores are idle; in smaller shards fewer simulators wait for each other. Change "
            "async.rollout.shards from 2 to 4.",
        ),
        (
            {"env__busiest": 0.93, "simulators": "accelerator"},
            "Change cluster.component_placement.env from 1 env worker to 2 env workers (as far as there are "
            "accelerators).",
        ),
        (
            {"env__busiest": 0.93, "simulators": "worker", "processes": 0},
            "in processes of their own simulators do not take turns in the worker's. Change "
            "env.train.processes from 0 to 4.",
        ),
        (
            {"env__busiest": 0.93, "simulators": "worker", "processes": 0, "cores": 5},
            "Change env.train.processes from 0 to 1.",
        ),
        (
            {"env__busiest": 0.93, "simulators": "unknown", "cores": 4},
            "more processes step them side by side. Change cluster.component_placement.env from 1 env worker",
        ),
        (
            {"env__busiest": 0.93, "simulators": "unknown", "cores": 4, "keys": VERL_KEYS},
            "Change env.workers from 1",
        ),
        (
            {"env__busiest": 0.93, "rollout": False, "env__asks": 0.5},
            "level 2 divides its 4 environments, so that fewer wait for the slowest. Change "
            "async.rollout.enabled "
            "from false to true.",
        ),
        (
            {"inference__busiest": 0.88},
            "Inference bounds the run: its busiest rank works 88% of the time; another rank shares the "
            "requests. "
            "Change cluster.component_placement.rollout from 1 rank to 2 ranks",
        ),
        (
            {"inference__busiest": 0.88, "full_batches": 0.7},
            "and 70% of its forward passes are full. Change async.rollout.max_batch_size from 4 to 8.",
        ),
        (
            {"max_wait_s": 0.02, "queued_s": 0.019},
            "Requests wait 19 ms for company while inference is idle 70% of the time. Change "
            "async.rollout.max_wait_ms from 20 to 0.",
        ),
        (
            {"queued_s": 0.1, "busy": {"inference": 0.6}},
            "The oldest request of a batch waits 100 ms for a forward pass of 20 ms, with inference busy "
            "60% of "
            "the time. Change cluster.component_placement.rollout from 1 rank to 2 ranks",
        ),
        (
            {"learner__busiest": 0.9},
            "The learner bounds the run: its busiest rank works 90% of the time. Change "
            "cluster.component_placement.actor from 1 rank to 2 ranks (as far as there are accelerators).",
        ),
        (
            {"learner__busiest": 0.9, "beside_micro_batches": 0.25},
            "25% of its training is no micro-batch and no optimizer step, among it the pass without "
            "gradients that "
            "anchors the correction. Change async.advanced.proximal from recomputed to loglinear (an "
            "interpolation, whose error train/proximal_error measures; with several optimizer steps a pass, "
            "ten seeds on two Meta-World tasks could not rule out that it learns more than 5 % less",
        ),
        (
            {"publication__busiest": 0.081, "learner__copies": 0.077},
            "Publication keeps the learner 8.1% of the time, 10 ms a step, most of it to copy its weights. "
            "Change "
            "weight_syncer.bucket.bucket_dtype from null to bf16",
        ),
        (
            {"driver": {"evaluate": 0.14}},
            "The learner waits for evaluation 14% of the time. Change runner.val_check_interval from 5 to "
            "10.",
        ),
        (
            {"driver": {"save": 0.08}},
            "The learner waits for checkpoints 8% of the time. Change runner.save_interval from 10 to 20.",
        ),
        (
            {"refused": {"stale": 12, "closed": 1}},
            "12 trajectories were collected and refused as too old. Change async.train.max_staleness from "
            "1 to 2",
        ),
        (
            {"staleness_max": 0.0},
            "the run is in effect synchronous, and level 1 gains nothing here. Change async.train.enabled "
            "from true "
            "to false.",
        ),
    ],
)
def test_a_rule_speaks_on_its_numbers(changes, sentence):
    sentences = [advice.sentence for advice in advise(facts(**changes))]
    assert any(sentence in each for each in sentences), sentences


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"learner__waits": 0.3, "env__gate": 0.25, "max_staleness": 2}, "async.train.max_staleness"),
        ({"env__asks": 0.3, "simulators": "accelerator"}, "async.rollout.shards"),
        ({"env__asks": 0.3, "cores": 2}, "async.rollout.shards"),
        ({"env__asks": 0.3, "cores": None}, "async.rollout.shards"),
        ({"env__asks": 0.3, "simulators": "worker"}, "async.rollout.shards"),
        ({"env__asks": 0.3, "batch_size": 1.1}, "async.rollout.shards"),
        ({"env__busiest": 0.93, "cores": 2}, "async.rollout.shards"),
        ({"env__busiest": 0.93, "cores": 2}, "cluster.component_placement.env"),
        ({"env__busiest": 0.93, "simulators": "worker", "processes": 0, "cores": 2}, "env.train.processes"),
        ({"env__asks": 0.35, "rollout": False, "simulators": "accelerator"}, "async.rollout.enabled"),
        ({"learner__busiest": 0.9, "on_cpu": True, "cores": 2}, "cluster.component_placement.actor"),
        ({"inference__busiest": 0.9, "on_cpu": True, "cores": 2}, "cluster.component_placement.rollout"),
        ({"inference__busiest": 0.9, "keys": Keys()}, ""),
        ({"learner__busiest": 0.9, "keys": Keys()}, ""),
        ({"refused": {"stale": 12}, "max_staleness": 2}, "async.train.max_staleness"),
        (
            {"refused": {"stale": 1}, "plan": ShardPlan(**{**PLAN, "rollout_epochs": 9})},
            "async.train.max_staleness",
        ),
        ({"env__asks": 0.3, "inference__idle": 0.3}, "async.rollout.shards"),
        ({"env__asks": 0.3, "plan": ShardPlan(**{**PLAN, "shards_per_worker": 8})}, "async.rollout.shards"),
        ({**STREAMS, "update_epoch": 4}, "async.streamer.enabled"),
        ({**STREAMS, "env__gate": 0.05}, "async.streamer.enabled"),
        (
            {"normalization": "deferred", "learner__waits": 0.3, "env__gate": 0.05},
            "async.advanced.normalization",
        ),
        ({"rollout": False, "env__asks": 0.35, "inference__idle": 0.45}, "async.rollout.enabled"),
        (
            {"rollout": False, "env__asks": 0.35, "inference__idle": 0.65, "env__gate": 0.4},
            "async.rollout.enabled",
        ),
        ({"staleness_max": 0.0, "env__resets": 0.05}, "async.train.enabled"),
        (
            {"learner__busiest": 0.9, "beside_micro_batches": 0.25, "corrects": False},
            "async.advanced.proximal",
        ),
        ({"publication__busiest": 0.04, "learner__copies": 0.04}, "weight_syncer.bucket.bucket_dtype"),
        ({"publication__busiest": 0.3, "learner__copies": 0.001}, "weight_syncer.bucket.bucket_dtype"),
        (
            {"publication__busiest": 0.3, "learner__copies": 0.2, "weight_syncer": "patch"},
            "weight_syncer.bucket.bucket_dtype",
        ),
        (
            {"publication__busiest": 0.3, "learner__copies": 0.2, "precision": "bf16"},
            "weight_syncer.bucket.bucket_dtype",
        ),
        (
            {"inference__busiest": 0.9, "full_batches": 0.9, "max_batch_size": 8},
            "async.rollout.max_batch_size",
        ),
        ({"refused": {"closed": 3}}, "async.train.max_staleness"),
        ({"staleness_max": 0.0, "steps": 2}, "async.train.enabled"),
        ({"driver": {"evaluate": 0.2}, "evaluates_every": -1}, "runner.val_check_interval"),
        ({"max_wait_s": 0.02, "queued_s": 0.001}, "async.rollout.max_wait_ms"),
        ({**CROWDED, "ask_s": 0.02}, "async.rollout.shards"),
        ({**CROWDED, "env__steps": 3.0}, "async.rollout.shards"),
        ({**CROWDED, "rollout": False, "env__busiest": 0.9}, "async.rollout.shards"),
        ({**CROWDED, "learner__busiest": 0.95}, "async.rollout.shards"),
        ({**CROWDED, "queued_s": None}, "async.rollout.shards"),
        ({**CROWDED, "plan": replace(MANY, shards_per_worker=2), "batch_size": 1.0}, "async.rollout.shards"),
    ],
)
def test_what_would_not_help_is_not_advised(changes, setting):
    assert setting not in [advice.setting for advice in advise(facts(**changes))]


def test_shards_that_wait_for_python_are_not_made_smaller():
    """Were the wait for answers taken for a lack of shards, 64 shards would become 128 and wait longer."""
    crowded = {**CROWDED, "plan": replace(MANY, total_envs=256), "batch_size": 6.0}
    (advice,) = [one for one in advise(facts(**crowded)) if one.setting == "async.rollout.shards"]
    assert (advice.before, advice.after) == ("64", "16")


@pytest.mark.parametrize(("between", "shards"), [(0.31, 32), (0.51, 16), (0.76, 8), (0.99, 2)])
def test_as_many_shards_are_advised_as_decisions_without_the_wait_fit_into_one_with_it(between, shards):
    """By counting: the interpreter works one part of a decision for each of 64 shards in turn."""
    answer = 1.0 - between - 0.01
    crowded = facts(plan=MANY, env__steps=0.01, env__asks=0.99, ask_s=0.99, queued_s=0.0, forward_s=answer)
    per_decision = 1.0 / 64  # of the interpreter, which is never idle
    without_wait = 0.01 + answer
    fit = [n for n in (2, 4, 8, 16, 32) if n * per_decision <= max(without_wait, 2 * per_decision) + 1e-9]
    assert crowded.fewer_shards == max(fit) == shards


def test_a_setting_is_advised_once():
    changes = {
        "rollout": False,
        "env__asks": 0.5,
        "env__busiest": 0.9,
        "learner__waits": 0.5,
        "env__gate": 0.4,
    }
    settings = [advice.setting for advice in advise(facts(**changes))]
    assert len(settings) == len(set(settings))


@pytest.mark.parametrize("rule", ADVICE_RULES)
def test_every_rule_states_its_condition(rule):
    assert rule.__doc__


def test_idle_cores_are_those_that_were_measured_where_they_were():
    load = Load(own=3.0, others=12.5, cores=16.0)
    assert facts(load=load).idle_cores == 0.5
    assert not facts(load=load).has_idle_core
    assert facts(load=replace(load, others=0.0)).idle_cores == 13.0


@pytest.mark.parametrize(
    ("config", "machine"),
    [
        ({"env": {"train": {"env_type": "libero"}}}, {"cores": 8, "simulators": "processes"}),
        ({"env": {"train": {"env_type": "maniskill"}}}, {"simulators": "accelerator"}),
        (
            {"env": {"train": {"env_type": "metaworld", "processes": 0}}},
            {"simulators": "worker", "processes": 0},
        ),
        ({"env": {"train": {"env_type": "metaworld", "processes": 2}}}, {"simulators": "processes"}),
        ({"env": {"train": {"env_type": "mine"}}}, {"simulators": "unknown"}),
        ({"cluster": {"num_nodes": 2}}, {"cores": None}),
        ({"trainer": {"nnodes": 2}, "vla": {}}, {"cores": None}),
    ],
)
def test_the_machine_is_read_from_the_records(tmp_path, config, machine):
    run = write_run(tmp_path, config=config, facts={"cores": 8, "versions": {"torch": "2.13.0+cpu"}})
    read = Machine.of(RunFiles.read(run))
    assert {name: getattr(read, name) for name in machine} == machine
    assert read.on_cpu


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"cluster": {"component_placement": {"actor,env": "all"}}}, RLINF_KEYS),
        ({"vla": {"ratio_level": "chunk"}}, VERL_KEYS),
        ({"host": "local"}, Keys()),
    ],
)
def test_settings_are_called_as_in_the_config_of_the_run(tmp_path, config, keys):
    assert Facts.of(RunFiles.read(write_run(tmp_path, config=config)), GOOD).keys == keys


@pytest.mark.parametrize("rule", ADVICE_RULES)
def test_nothing_is_advised_on_numbers_that_nobody_knows(rule):
    assert rule(replace(FACTS, measures=Measures(), levels={}, plan=None)) is None
    assert rule(replace(FACTS, measures=Measures())) is None


def test_what_a_config_leaves_out_has_the_defaults_of_the_block(tmp_path):
    read = Facts.of(RunFiles.read(write_run(tmp_path, config={"x": 1})), GOOD)
    block = AsyncConfig.from_mapping({"mode": "full"})
    assert read.proximal == block.advanced.proximal
    assert read.corrects == (block.correction != "none")
    assert read.normalization == block.advanced.normalization
    assert read.deterministic == block.deterministic
    assert read.max_wait_s == block.rollout.max_wait
    assert read.plan == ShardPlan(**PLAN)


@pytest.mark.parametrize(
    "plan", [{}, {"total_envs": "8"}, [1], {**PLAN, "more": 1}, {**PLAN, "total_envs": 7}]
)
def test_a_damaged_plan_is_none(tmp_path, plan):
    run = write_run(
        tmp_path, facts={"plan": plan, "levels": "all", "max_wait_s": "soon", "max_batch_size": True}
    )
    read = Facts.of(RunFiles.read(run), GOOD)
    assert (read.plan, read.max_batch_size, read.max_wait_s) == (None, None, 0.0)
    assert advise(read) == []
