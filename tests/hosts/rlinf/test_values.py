"""Every type that an RLinf defines is in the tables here, or is treated as unknown: no guess, no split.

The types are read from RLinf's own enumeration and registries: of the wheel also by importing them, of trees
that RLINF_TREES names from their sources.
"""

import ast
import enum
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import splitting
from rlinf_async.hosts.explanation import why_so_many
from rlinf_async.hosts.judge.reasons import RefusedError
from rlinf_async.hosts.rlinf import borrowed, keys, losses, models, presence, reasons
from rlinf_async.hosts.rlinf.checkout import IS_KNOWN_VALUE, Values, unknown_values, values_of
from rlinf_async.hosts.rlinf.exactness import exactness
from rlinf_async.hosts.rlinf.explain import undecided
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.reasons import fit
from rlinf_async.hosts.rlinf.scoring import SELECTING_MODELS, TOKEN_MODELS
from rlinf_async.hosts.rlinf.settings import read_settings
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.checkouts import RELEASED, TREES, others, package
from tests.hosts.rlinf.given import ONE_EACH, config

DOCS = Path(__file__).parents[3] / "docs"
FULL = AsyncConfig.from_mapping({"mode": "full"})
NEWER = Values(
    env_type=frozenset(
        {"world_model", "real", "robocasa365", "geniesim", "mujoco_warp", "robodojo", "simple"}
    ),
    model_type=frozenset({"pi0_fast", "fastwam", "cosmos3", "psi0", "evo1", "brand_new"}),
    loss_type=frozenset({"rlt_ac", "rlt_td3", "opd", "brand_new"}),
    adv_type=frozenset({"grpo_video", "opd", "brand_new"}),
    logprob_type=frozenset({"sequence_token_level", "brand_new_level"}),
)
"""Types of RLinf between September and November 2026, by its README and a fork, and some of nobody's."""
ENVIRONMENTS = """
    behavior calvin d4rl diffusion embodichain frankasim genesis habitat isaaclab libero maniskill
    maniskill_rlt metaworld polaris real robocasa robocasa365 robotwin roboverse world_model
"""
MODELS = """
    abot_m0 cfg_model cma cnn_policy cosmos3 dexbotic_dm0 dexbotic_pi dreamzero evo1 fastwam flow_policy gr00t
    gr00t_n1d6 gr00t_n1d7 lingbotvla mlp_policy openpi openvla openvla_oft pi0_fast recap_value_model resnet
    rlt_mlp_policy rlt_td3_mlp_policy starvla steam_value_model
"""
OCTOBER = Values(
    env_type=frozenset(ENVIRONMENTS.split()),
    model_type=frozenset(MODELS.split()),
    loss_type=frozenset({*losses.ON_POLICY_LOSSES, *losses.LOSSES_WITHOUT_RATIO, *losses.OTHER_ALGORITHMS}),
    adv_type=frozenset({"gae", "grpo", "opd"}),
    logprob_type=frozenset({"token_level", "action_level", "chunk_level", "sequence_token_level"}),
)
"""Types of a fork of October 2026, written down from its `SupportedEnvType`, `EMBODIED_MODEL`, losses and
`preprocess_loss_inputs` (tuo3288/RLinf at 39ef07d2 and b24dbccc); of its advantages those that were read."""


READ = {"newer": NEWER, "october": OCTOBER}


@pytest.fixture(params=(*TREES, *others(), *READ))
def types(request):
    return READ.get(request.param) or values_of(package(request.param))


def test_types_that_are_read_from_sources_are_those_that_the_released_rlinf_has_when_it_is_imported():
    for module in ("advantages", "losses"):
        import_module(f"rlinf.algorithms.{module}")
    registry, own = import_module("rlinf.algorithms.registry"), import_module("rlinf.config")
    found = values_of(package(RELEASED))
    assert found.env_type == {kind.value for kind in borrowed.SupportedEnvType}
    # Models of entry points join the set where our hooks have been installed.
    declared = {kind.value for kind in own.EMBODIED_MODEL}
    assert found.model_type == declared - set(models.names_of(models.MODELS_GROUP))
    assert found.adv_type == set(registry.ADV_REGISTRY)
    assert found.loss_type >= set(registry.LOSS_REGISTRY) - {losses.LOSS_NAME}
    assert {"embodied_sac", "embodied_dagger", "embodied_nft"} <= found.loss_type
    assert found.logprob_type == {"token_level", "action_level", "chunk_level"}


def test_a_simulator_that_no_table_names_is_one_shard_and_a_note(types):
    for kind in types.env_type:
        cfg = config({"env.train.env_type": kind})
        shards = read_settings(cfg, fit(cfg).asynchrony, ONE_EACH).plan.shards_per_worker
        why = why_so_many(cfg["env"]["train"], FULL.rollout, stages=1, key="rollout.pipeline_stage_num")
        if IS_KNOWN_VALUE["env_type"](kind):
            assert "was not examined" not in why
        else:
            assert (shards, splitting(cfg["env"]["train"])) == (1, "unknown"), kind
            assert f"{kind} is not split, as it is not examined here" in why
            assert fit(cfg).asynchrony.advanced.balance == "exact", kind


def test_a_simulator_that_computes_on_an_accelerator_is_not_split():
    for kind in ("world_model", "wan_wm", "opensora_wm", "maniskill", "maniskill_rlt", "isaaclab", "genesis"):
        assert splitting({"env_type": kind}) == "vectorised"


def test_a_model_that_no_table_names_is_not_examined_or_refused_without_a_guess(types):
    for kind in types.model_type:
        cfg = config({"actor.model.model_type": kind, "actor.model.add_value_head": True})
        found = fit(cfg)
        settings = read_settings(cfg, FULL, ONE_EACH)
        verdict = exactness(RLinfView.of(cfg), settings)["rollout"]
        unserved = {*models.UNSERVED_MODELS, *models.EVALUATED_MODELS}
        assert bool(found.reasons) == (kind in unserved), kind
        if not IS_KNOWN_VALUE["model_type"](kind):
            assert verdict.startswith("not examined"), kind
        assert not any(reason.override.startswith("actor.model.model_type") for reason in found.reasons)


@pytest.mark.parametrize(
    ("key", "served"), [("loss_type", losses.ON_POLICY_LOSSES), ("adv_type", losses.ADVANTAGE_TYPES)]
)
def test_an_algorithm_that_is_not_served_is_refused_by_its_name_without_a_guess(key, served, types):
    for kind in getattr(types, key):
        cfg = config(
            {f"algorithm.{key}": kind, "actor.model.add_value_head": True, "algorithm.group_size": 2}
        )
        if kind in served:
            assert not list(reasons.other_algorithm_reasons(RLinfView.of(cfg)))
            continue
        if kind in losses.LOSSES_WITHOUT_RATIO:
            continue  # served, with advantages of its own: test_refusals.py
        with pytest.raises(RefusedError) as raised:
            fit(cfg)
        (reason,) = raised.value.reasons
        assert reason.text.startswith(f"algorithm.{key}={kind!r} is ")
        assert reason.override == ""
        assert "did you mean" not in reason.text


def test_a_level_of_ratios_that_nobody_has_looked_at_is_refused_as_that(types):
    for level in types.logprob_type:
        cfg = config({"algorithm.logprob_type": level})
        reasons = [reason for reason in fit(cfg).reasons if "logprob_type" in reason.text]
        assert not TABLE.reasons(cfg, complete=False)
        if level in losses.RATIO_LEVELS:
            assert not reasons
        else:
            (reason,) = reasons
            assert "is not examined" in reason.text
            assert reason.override == ""


def test_a_level_that_rlinf_does_not_know_either_is_named_and_one_that_it_knows_is_left_to_the_levels(
    monkeypatch,
):
    misspelt = config({"algorithm.logprob_type": "token_levle", **CRITIC})
    (reason,) = reasons.ratio_reasons(RLinfView.of(misspelt))
    assert "did you mean 'token_level'?" in reason.text
    assert reason.override == ""
    monkeypatch.setattr(reasons, "_levels_of_rlinf", lambda: {"sequence_token_level"})
    known = config({"algorithm.logprob_type": "sequence_token_level", **CRITIC})
    assert not list(reasons.ratio_reasons(RLinfView.of(known)))


CRITIC = {"actor.model.add_value_head": True}


class RenamedEnvType(enum.Enum):
    """As RLinf's of September: old spellings are accepted, and asking for some needs a package."""

    REAL = "real"
    METAWORLD = "metaworld"

    @classmethod
    def _missing_(cls, value):
        if value == "moon":
            raise ImportError("no package of moons")
        return {"realworld": cls.REAL}.get(value)


def environments(kind):
    cfg = config({"env.train.env_type": kind, "env.eval": None})
    return [reason for reason in presence.name_reasons(RLinfView.of(cfg)) if "env_type" in reason.text]


@pytest.mark.parametrize("kind", ["real", "realworld", "moon"])
def test_rlinfs_own_enumeration_says_which_names_of_environments_it_accepts(kind, monkeypatch):
    monkeypatch.setitem(vars(borrowed), "SupportedEnvType", RenamedEnvType)
    assert environments(kind) == []


def test_a_robot_is_never_offered_a_simulator_as_an_override(monkeypatch):
    monkeypatch.setitem(vars(borrowed), "SupportedEnvType", RenamedEnvType)
    for kind in ("metawrld", "wan_wm", "reel", 3):
        (reason,) = environments(kind)
        assert reason.text.startswith(f"env.train.env_type={kind!r} is not an environment of RLinf")
        assert reason.override == ""
    (reason,) = environments(None)
    assert (reason.text.partition(";")[0], reason.override) == ("env.train.env_type is missing", "")


def test_the_models_that_rlinfs_training_step_passes_more_to_are_those_of_the_tables(types, request):
    """Their names stand in `train_micro_batch`; without them a model would be scored with other arguments."""
    if types in READ.values():
        pytest.skip("there are no sources of it")
    root = package(request.node.callspec.params["types"])
    registered = dict(registered_models(root))
    place = "rlinf.workers.actor.{}fsdp_actor_worker:EmbodiedFSDPActor"
    files = [root / "workers" / "actor" / f"{prefix}fsdp_actor_worker.py" for prefix in ("embodied_", "")]
    (method,) = (
        node
        for file in files
        if file.is_file()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "train_micro_batch"
    )
    named = {
        registered[node.attr]
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "SupportedModel"
    }
    assert named == TOKEN_MODELS | SELECTING_MODELS, place


def registered_models(root):
    for node in ast.parse((root / "config.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("SupportedModel."):
            yield node.targets[0].attr, ast.literal_eval(node.value.args[0])


def test_every_kind_of_value_has_its_table():
    assert {field.name for field in fields(Values)} == set(IS_KNOWN_VALUE)
    found = unknown_values(NEWER)
    assert found["env_type"] == ("geniesim", "mujoco_warp", "real", "robodojo", "simple")
    assert found["logprob_type"] == ("brand_new_level", "sequence_token_level")
    assert found["loss_type"] == found["adv_type"] == ("brand_new",)
    assert set(found["model_type"]) == {"brand_new", "cosmos3", "psi0"}


def test_the_page_names_every_type_of_october_that_no_table_names():
    page = (DOCS / "rlinf-autumn.md").read_text()
    told = {line.split("|")[1].strip(" `"): line for line in page.splitlines() if line.startswith("| `")}
    found = unknown_values(OCTOBER)
    assert set(found) == {"env_type", "model_type", "logprob_type"}
    for key, names in found.items():
        assert set(re.findall(r"`(\w+)`", told[key].split("|")[2])) == set(names), key


def test_keys_that_rlinf_fills_in_by_itself_are_not_held_against_the_user(monkeypatch):
    filled = {"cluster.tracer.enable": False, "cluster.moon.enable": False}
    monkeypatch.setattr(keys, "filled_in", lambda: {"cluster.tracer.enable"})
    assert [line.partition("=")[0] for line in undecided(config(filled))] == ["cluster.moon.enable"]
    asked = config({"cluster.tracer.enable": True})
    assert [line.partition("=")[0] for line in undecided(asked)] == ["cluster.tracer.enable"]
