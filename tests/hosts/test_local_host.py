"""The host of one process, asked as the commands ask any host."""

import json
import os
import re
from pathlib import Path

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

from typer.testing import CliRunner

from rlinf_async.cli import app
from rlinf_async.compose import compose_config
from rlinf_async.hosts.host import every, host_of
from rlinf_async.hosts.local.config import settings_of
from rlinf_async.hosts.local.host import LocalHost
from rlinf_async.hosts.local.trainer import LocalTrainer
from rlinf_async.lab.trace import flows_of
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.run_dir import RunDir

NAME = ("--config-name", "local/point_reach")


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """`train` sets what Ray reads, for its own process."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("value", ["null", "{}"])
def test_a_misspelt_setting_that_says_nothing_is_as_if_it_were_absent(value):
    misspelt = settings_of(compose_config("local/point_reach", [f"+settings.horizn={value}"]))
    assert misspelt == settings_of(compose_config("local/point_reach", []))


def test_a_config_finds_its_host_by_what_it_contains():
    assert isinstance(host_of(compose_config("local/point_reach", [])), LocalHost)
    others = [host for host in every() if not isinstance(host, LocalHost)]
    assert others
    for host in others:
        assert not host.serves(compose_config("local/point_reach", []))
    with pytest.raises(ValueError, match="no host runs this config, which is empty: local needs"):
        host_of({})


def test_a_policy_learns_in_one_process_and_leaves_a_run_directory(tmp_path):
    ended = invoke("train", *NAME, f"run_dir={tmp_path}")
    assert ended.exit_code == 0, ended.output
    assert "40/40" in ended.output
    assert "Ray" not in ended.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["trajectories"] == {"produced": 1280, "trained": 1280, "in_flight": 0, "refused": {}}
    assert summary["success"]["first"] < 0.3 < 0.8 < summary["success"]["last"]
    assert {span["process"] for span in read_spans(tmp_path / "trace")} == {
        "env worker 0",
        "inference rank 0",
        "learner rank 0",
    }
    steps = [flow for flow in flows_of(read_spans(tmp_path / "trace")) if flow.name == "trajectory"]
    assert {tuple(span["kind"] for span in flow.spans) for flow in steps} == {
        ("put", "accept", "optimizer step")
    }
    assert len(RunReader(tmp_path).metrics()) == 40
    page = tmp_path / "report.html"
    assert " kB in " in invoke("report", str(tmp_path), "--output", str(page)).output
    assert "full" in page.read_text()
    assert RunReader(tmp_path).status().step == 40
    assert "has ended: 40 steps" in invoke("status", str(tmp_path)).output


def test_all_that_a_page_names_of_a_run_in_one_process_is_in_its_metrics(tmp_path):
    """The words are those of docs/config.md; what Ray's processes alone have is left out."""
    loglinear = ("async.advanced.proximal=loglinear", "async.train.correction=tis")
    names = {}
    for run, overrides in {"full": (), "loglinear": loglinear}.items():
        ended = invoke("train", *NAME, f"run_dir={tmp_path / run}", "settings.batches=2", *plus(overrides))
        assert ended.exit_code == 0, ended.output
        names[run] = {name for each in RunReader(tmp_path / run).metrics() for name in each}
    found = names["full"] | names["loglinear"]
    page = Path("docs/config.md").read_text()
    told = re.findall(r"`((?:async|train)/[^`]+)`", page[page.index("| metric | what |") :])
    elsewhere = ("async/requests_again", "async/steps_skipped", "async/save_failures", "train/premise/")
    elsewhere += ("async/skipped/frames", "async/skipped/samples", "async/frames/")
    grouped = ("train/groups_without_signal",)  # with GRPO
    for name in (each for metric in told for each in spelled_out(metric)):
        if not name.startswith((*elsewhere, *grouped, "async/restarts/")):
            assert any(re.fullmatch(name, each) for each in found), name
    assert {"env/return", "env/success_once", "rollout/rewards", "rollout/advantages_mean"} <= found


def plus(overrides):
    return [f"++{each}" for each in overrides]


def spelled_out(metric):
    """The names that `a/{b,c}/lag_<n>/...` stands for, as patterns."""
    alternatives = re.split(r"\{([^}]*)\}", metric.replace("lag_<n>", r"lag_\d+").replace("...", ".*"))
    spelled = [""]
    for number, part in enumerate(alternatives):
        spelled = [begin + each for begin in spelled for each in (part.split(",") if number % 2 else [part])]
    return spelled


def test_a_run_prints_what_explain_remarks(tmp_path):
    overrides = ("async.deterministic=true", "async.mode=train")
    facts = json.loads(invoke("explain", *NAME, *plus(overrides), "--json").output)
    assert any("async.deterministic" in remark for remark in facts["remarks"])
    ended = invoke("train", *NAME, *plus(overrides), f"run_dir={tmp_path}", "settings.batches=1")
    printed = " ".join(ended.output.split())
    assert all(remark in printed for remark in facts["remarks"])


def test_a_second_run_in_the_same_directory_sets_the_first_aside(tmp_path):
    for batches in (2, 1):
        ended = invoke("train", *NAME, f"run_dir={tmp_path}", f"settings.batches={batches}")
        assert ended.exit_code == 0, ended.output
    earlier = RunDir(tmp_path / "earlier" / "1")
    assert str(earlier.path) in ended.output.replace("\n", "")
    assert [len(RunReader(each.path).metrics()) for each in (earlier, RunDir(tmp_path))] == [2, 1]
    for each in (earlier.path, tmp_path):
        kept = {"config.yaml", "metrics.jsonl", "policy.pt", "run.json", "summary.json", "trace"}
        assert kept <= {path.name for path in each.iterdir()}


def test_an_interrupt_says_what_is_left(tmp_path, monkeypatch):
    def interrupted(trainer):
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalTrainer, "run", interrupted)
    ended = invoke("train", *NAME, f"run_dir={tmp_path}")
    assert ended.exit_code == 130
    assert "interrupted" in ended.output
    assert {path.name for path in tmp_path.iterdir()} >= {"config.yaml", "run.json"}


def test_it_is_explained_as_it_will_run():
    explained = json.loads(invoke("explain", *NAME, "async.streamer.enabled=false", "--json").output)
    assert explained["levels"] == {"train": True, "rollout": True, "streamer": False}
    assert (explained["total_envs"], explained["shards_per_worker"], explained["streams"]) == (32, 2, False)
    assert "train + rollout" in invoke("explain", *NAME, "async.streamer.enabled=false").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("+settings.total_env=4",), "unknown key settings.total_env; did you mean settings.total_envs?"),
        (("settings.horizon=0",), "settings.horizon=0 must be a whole number of at least 1"),
        (("--gpus", "8"), "takes no cluster"),
        (("async.mode=ful",), "did you mean 'full'"),
        (
            ("+async.advanced.keep_checkpoints=2",),
            "the local host does not support async.advanced.keep_checkpoints=2; remove it",
        ),
        (
            ("+async.advanced.stall_s=9",),
            "the local host does not support async.advanced.stall_s=9; remove it",
        ),
    ],
)
def test_what_it_cannot_run_is_one_line(arguments, message):
    ended = invoke("explain", *NAME, *arguments)
    assert ended.exit_code == 2
    assert message in ended.output


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.env_class=nowhere", "env.env_class='nowhere' is not an entry point of rlinf_async.envs"),
        (
            "model.model_type=nowhere",
            "model.model_type='nowhere' is not an entry point of rlinf_async.models",
        ),
        (
            "env.env_class=mine.envs:Reach",
            "add reach = 'mine.envs:Reach' to [project.entry-points.\"rlinf_async.envs\"] in the pyproject",
        ),
        (
            "model.model_type=mine.models.Policy",
            "add policy = 'mine.models:Policy' to [project.entry-points.\"rlinf_async.models\"] in the",
        ),
        ("env.env_class=POINT_REACH", "did you mean 'point_reach'?"),
        ("+model.model_path=7", "model.model_path=7 must be the path or the name of a model"),
        ("+model.model_path=./nowhere", "model.model_path=./nowhere does not exist"),
        ("settings.lr={a: 1}", "error: settings.lr={'a': 1} must be a finite number above 0"),
        ("+settings.device=cuda", "unknown key settings.device; remove it"),
        ("host=Local", "host=Local chooses nothing: the only host that a config names is local"),
        (
            "~model",
            "model.model_type is missing; set it to an entry point of rlinf_async.models",
        ),
        ("+env.auto_reset=true", "the local host does not support env.auto_reset=True; set it to false"),
    ],
)
def test_environments_and_policies_that_it_cannot_have_are_refused_by_name(override, message):
    ended = invoke("train", *NAME, override)
    assert ended.exit_code == 2
    assert message in ended.output.replace("\n", " ")


def test_a_block_of_ones_own_is_noted_and_a_name_that_is_nearly_known_is_asked_for():
    remarks = LocalHost().explain(
        compose_config(
            "local/point_reach", ["+hparams.lr=1e-4", "+setings.lr=1", "settings.lr=${hparams.lr}"]
        )
    )["remarks"]
    own = [remark for remark in remarks if "of this config's own" in remark]
    assert len(own) == 2
    assert own[0] == "hparams is a block of this config's own, which the local host does not read"
    assert own[1].endswith("did you mean settings?")


def test_settings_of_a_level_that_is_off_are_noted():
    words = ["async.mode=lean", "async.rollout.shards=4", "async.skip.frames=false"]
    remarks = LocalHost().explain(compose_config("local/point_reach", words))["remarks"]
    assert remarks == ["async.rollout.shards=4 has no effect: async.rollout.enabled is false"]
