import json
import os
import re
import signal
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.cli import application, training
from rlinf_async.core.failures import Terminated
from rlinf_async.doctor import Check

PACKAGED = {
    "metaworld_ppo_mlp": 2,
    "metaworld_grpo_mlp": 2,
    "metaworld_ppo_vla": 2,
    "libero_object_ppo_vla": 2,
    "maniskill_ppo_mlp": 8,
}
"""The configs, and their shards."""


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


def explain(*arguments: str) -> dict:
    result = invoke("explain", "--config-name", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_help_lists_what_everybody_needs_first_and_the_laboratory_under_its_own_heading():
    everyday, heading, others = invoke("--help").output.partition(application.FURTHER_PANEL)
    assert heading
    named = [re.findall(r"^│ (\w+) ", part, re.MULTILINE) for part in (everyday, others)]
    assert named[0] == ["explain", "train", "report", "status", "doctor", "configs"]
    assert named[1] == ["bench", "compat", "plan", "sweep", "trace"]


@pytest.mark.parametrize("name", PACKAGED)
def test_every_packaged_config_is_explained(name):
    facts = explain(name)
    assert facts["levels"] == {"train": True, "rollout": True, "streamer": True}
    assert facts["max_staleness"] == 1
    assert facts["correction"] == "decoupled"
    assert len(facts["classes"]) == 4
    assert facts["shards"]["total"] == PACKAGED[name]
    assert set(facts["exactness"]) == {"train", "rollout", "streamer"}


@pytest.mark.parametrize("off", ["async.mode=off", "~async", "runner.only_eval=true"])
def test_off_replaces_nothing(off):
    facts = explain("metaworld_ppo_mlp", off)
    assert facts["classes"] == {}
    assert facts["levels"] == {"train": False, "rollout": False, "streamer": False}
    assert facts["exactness"] == {"train": "off", "rollout": "off", "streamer": "off"}


def test_a_flag_on_the_command_line_beats_the_mode_with_or_without_a_plus():
    for spelling in ("async.streamer.enabled=false", "+async.streamer.enabled=false"):
        assert explain("metaworld_ppo_mlp", spelling)["levels"]["streamer"] is False


def test_streaming_gae_says_that_it_is_approximate_and_how_to_make_it_exact():
    running = explain("metaworld_ppo_mlp", "async.advanced.normalization=running")
    by_the_batch_before = running["exactness"]["streamer"]
    assert by_the_batch_before.startswith("approximate")
    assert "normalization=deferred" in by_the_batch_before
    deferred = explain("metaworld_ppo_mlp", "async.advanced.normalization=deferred")
    assert deferred["exactness"]["streamer"].startswith("exact")
    # Of eight epochs streaming could hide one; with a single epoch it is worth its price.
    assert explain("metaworld_ppo_mlp")["exactness"] == deferred["exactness"]
    one_epoch = explain("metaworld_ppo_mlp", "algorithm.update_epoch=1")["exactness"]["streamer"]
    assert one_epoch == by_the_batch_before


def test_streaming_grpo_is_exact_with_one_optimizer_step_and_with_several():
    for steps in ((), ("actor.global_batch_size=640",)):
        assert explain("metaworld_grpo_mlp", *steps)["exactness"]["streamer"].startswith("exact")


def test_the_table_for_readers_names_levels_classes_and_shards():
    output = invoke("explain", "-n", "metaworld_ppo_mlp").output
    for words in ("train, rollout, streamer", "EnvWorker", "environments each", "approximate"):
        assert words in output


def test_an_unknown_config_lists_those_that_there_are():
    result = invoke("explain", "-n", "metaworld_ppo")
    assert result.exit_code == 2
    assert all(name in result.output for name in PACKAGED)


@pytest.mark.parametrize("override", ["async.mode=off", "~async", "+async.streamer.enabled=false"])
def test_the_first_word_is_the_config_unless_an_option_names_it(override):
    by_option = invoke("explain", "-n", "metaworld_ppo_mlp", override, "--json")
    assert by_option.exit_code == 0, by_option.output
    assert invoke("explain", "metaworld_ppo_mlp", override, "--json").stdout == by_option.stdout
    result = invoke("explain", override)
    assert result.exit_code == 2
    assert "a config is missing" in result.output


def test_a_file_is_a_config_wherever_it_is(tmp_path: Path):
    from omegaconf import OmegaConf

    from rlinf_async.compose import compose_config

    file = tmp_path / "config.yaml"
    OmegaConf.save(compose_config("metaworld_ppo_mlp", ["async.mode=train"]), file)
    assert json.loads(invoke("explain", str(file), "--json").stdout)["levels"]["rollout"] is False
    missing = invoke("explain", str(tmp_path / "other.yaml"))
    assert missing.exit_code == 2
    assert "there is no file" in missing.output


def test_every_config_that_is_listed_says_what_it_is():
    from rlinf_async.compose import compose_config

    said = json.loads(invoke("configs", "--json").stdout)
    assert {*PACKAGED, "local/point_reach"} <= set(said)
    assert [name for name, text in said.items() if len(text) < 40 or "rlinf-async train" in text] == []
    for name in said:
        assert "async" in compose_config(name, []) or compose_config(name, []).host == "local"
    assert all(name in invoke("configs").output for name in said)


def test_the_shell_completes_configs_by_their_beginning():
    environment = {
        "_RLINF_ASYNC_COMPLETE": "complete_bash",
        "COMP_WORDS": "rlinf-async explain metaworld_g",
        "COMP_CWORD": "2",
    }
    result = CliRunner().invoke(cli.app, [], env=environment, prog_name="rlinf-async")
    assert result.output.split() == ["metaworld_grpo_mlp"]


def test_a_config_is_explained_for_the_cluster_that_is_named():
    everywhere = [f"cluster.component_placement.{part}=all" for part in ("env", "rollout", "actor")]
    base = ("metaworld_ppo_mlp", *everywhere, "env.train.total_num_envs=64", "actor.micro_batch_size=5")
    for options, ranks in ((("--gpus", "8"), 8), (("--gpus", "8", "--nodes", "4"), 32), ((), 1)):
        facts = explain(*base, *options)
        assert set(facts["ranks"].values()) == {ranks}
        assert facts["cluster"]["assumed"] is (not options)


@pytest.mark.parametrize("mode", ["off", "train", "rollout", "streamer", "full"])
def test_the_presets_compose_onto_any_config_from_any_directory(tmp_path: Path, mode):
    (tmp_path / "mine.yaml").write_text("runner: {seq_length: 1}\n")
    from rlinf_async.compose import compose_config

    cfg = compose_config("mine", [f"+async={mode}"], tmp_path)
    assert cfg["async"]["mode"] in (mode, False if mode == "off" else mode)
    assert cfg.runner.seq_length == 1


@pytest.mark.parametrize(
    ("text", "overrides", "levels", "bound"),
    [
        ("async: {mode: off}", ["async.train=true"], {"train"}, 1),
        ("async: {mode: full, train: {max_staleness: 3}}", ["async.train=TRUE", "+async.rollout=false"],
         {"train", "streamer"}, 3),
        ("async: {train: true}", ["async.train.max_staleness=2"], {"train"}, 2),
        ("async: {mode: full, train: true}", ["async.train=false"], {"rollout", "streamer"}, 0),
    ],
)  # fmt: skip
def test_true_or_false_for_a_level_leaves_its_other_keys_as_they_are(
    tmp_path, text, overrides, levels, bound
):
    from rlinf_async.compose import compose_config
    from rlinf_async.config import AsyncConfig
    from rlinf_async.hosts.async_block import read_block

    (tmp_path / "mine.yaml").write_text(text)
    config = AsyncConfig.from_mapping(read_block(compose_config("mine", overrides, tmp_path)))
    assert ({level for level, on in config.levels.items() if on}, config.max_staleness) == (levels, bound)


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_doctor_exits_by_what_it_finds(monkeypatch, status, code):
    check = Check(name="knee", status=status, detail="bent", mend="rest, and ray[default]")
    monkeypatch.setattr("rlinf_async.doctor.run_checks", lambda: [check])
    shown = invoke("doctor")
    assert shown.exit_code == code
    assert "rest" in shown.output
    assert "ray[default]" in shown.output
    plain = invoke("doctor", "--json")
    assert plain.exit_code == code
    assert json.loads(plain.stdout)[0]["status"] == status


def test_a_remedy_of_the_doctor_is_one_line_that_can_be_copied(monkeypatch):
    mend = "export VK_ICD_FILENAMES=" + 12 * "/a/long/folder" + "/vk_swiftshader_icd.json"
    check = Check(name="vulkan", status="warn", detail="no [device] " * 20, mend=mend)
    monkeypatch.setattr("rlinf_async.doctor.run_checks", lambda: [check])
    lines = invoke("doctor").output.splitlines()
    assert any(line.endswith(f"-> {mend}") for line in lines)
    assert lines[0].startswith("warn  vulkan          no [device] no [device]")


def test_a_correction_is_explained_with_its_bound_and_its_anchor():
    facts = explain("metaworld_ppo_mlp", "async.train.correction=tis")
    assert (facts["correction"], facts["max_weight"], facts["proximal"]) == ("tis", 2.0, "recomputed")
    facts = explain("metaworld_ppo_mlp", "async.advanced.proximal=loglinear")
    assert (facts["max_weight"], facts["proximal"]) == (None, "loglinear")
    assert "interpolated proximal policy" in facts["exactness"]["train"]
    assert any("the policies that sampled, and are not recomputed" in remark for remark in facts["remarks"])
    facts = explain("metaworld_ppo_mlp", "async.mode=train", "async.deterministic=true")
    assert facts["deterministic"]
    assert "exactly 1 policy version old" in facts["exactness"]["train"]
    facts = explain("metaworld_ppo_mlp", "async.mode=rollout")
    assert (facts["correction"], facts["max_weight"], facts["proximal"]) == ("none needed", None, None)


@pytest.fixture
def trains_by(monkeypatch, tmp_path):
    """Has `train` call a function in the place of a host's, in a run directory which is `tmp_path`."""

    def replace(train, *, cluster="none"):
        host = SimpleNamespace(
            available=True,
            install=lambda: None,
            begin=nullcontext,
            prepare=lambda cfg: None,
            ray_cluster=lambda cfg: cluster,
            train=lambda cfg, dashboard: train(),
            run_dir=lambda cfg: tmp_path,
        )
        monkeypatch.setattr(training, "host_of", lambda cfg: host)

    return replace


def test_ray_remembers_less_than_it_would_and_as_much_as_it_is_told_to(monkeypatch, trains_by):
    """Its memory of calls would grow by half a gigabyte in a run of days."""
    found = []
    every, most = "RAY_task_events_report_interval_ms", "RAY_task_events_max_num_task_in_gcs"
    trains_by(lambda: found.append({name: os.environ.get(name) for name in (every, most)}), cluster="own")
    for given, options, expected in (
        ({}, (), {every: "0", most: None}),
        ({}, ("--dashboard",), {every: None, most: "5000"}),
        ({every: "70"}, (), {every: "70", most: None}),
    ):
        with monkeypatch.context() as context:
            own = {name: value for name, value in os.environ.items() if name not in (every, most)}
            context.setattr(os, "environ", own | given)  # whatever runs of other tests have left
            assert invoke("train", "metaworld_ppo_mlp", *options).exit_code == 0
        assert found.pop() == expected


def test_a_run_starts_a_cluster_of_its_own_unless_it_is_to_join_one(monkeypatch, trains_by):
    found = []
    trains_by(lambda: found.append(os.environ.get("RAY_ADDRESS")), cluster="own")
    for options in ((), ("--join",)):
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        assert invoke("train", "metaworld_ppo_mlp", *options).exit_code == 0
    assert found == ["local", None]


@pytest.fixture
def run_that_ends(trains_by):
    """Has `train` run something that ends by an error."""

    def ends_by(error):
        def train():
            raise error

        trains_by(train)
        return invoke("train", "metaworld_ppo_mlp")

    return ends_by


def test_an_interrupted_run_ends_undisturbed_by_another_interrupt(run_that_ends):
    assert run_that_ends(KeyboardInterrupt()).exit_code == 130
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("error", "status", "how"),
    [
        (RuntimeError("the learner has diverged"), 1, "failed"),
        (SystemExit(0), 1, "failed"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(signal.SIGTERM), 143, "terminated"),
        (Terminated(signal.SIGUSR1), 138, "terminated"),
    ],
)
def test_a_run_that_fails_says_one_sentence_and_leaves_its_sum(run_that_ends, tmp_path, error, status, how):
    ended = run_that_ends(error)
    assert ended.exit_code == status
    assert len(ended.output.splitlines()) == 1
    assert "Traceback" not in ended.output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["ended"] == how
    assert summary["ending"] in ended.output


def test_a_command_that_is_interrupted_before_its_run_begins_ends_with_130(monkeypatch):
    def interrupted(cfg):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "host_of", interrupted)
    ended = invoke("train", "metaworld_ppo_mlp")
    assert (ended.exit_code, ended.output) == (130, "")


def test_a_run_that_starts_itself_again_joins_as_it_was_told_to(monkeypatch):
    commands = []
    monkeypatch.setattr("rlinf_async.supervise.supervise", lambda command, **_: commands.append(command) or 0)
    assert invoke("train", "metaworld_ppo_mlp", "--restarts", "1", "--join").exit_code == 0
    assert "--join" in commands[0]


def test_a_thread_that_fails_beside_a_run_takes_one_line(monkeypatch, trains_by):
    def train():
        def fails():
            raise OSError(28, "No space left on device")

        for target, name in ((fails, "writer"), (sys.exit, "leaver")):
            thread = threading.Thread(target=target, name=name)
            thread.start()
            thread.join()

    trains_by(train)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    ended = invoke("train", "metaworld_ppo_mlp")
    assert ended.exit_code == 0, ended.output
    (line,) = ended.output.splitlines()
    assert "writer, has ended by OSError: [Errno 28] No space left on device" in line
