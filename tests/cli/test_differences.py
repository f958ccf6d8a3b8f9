"""`rlinf-async explain --diff`: what differs between two configs."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.config import resolve, write_back


def invoke(*arguments: str):
    return CliRunner().invoke(cli.app, ["explain", *arguments], env={"COLUMNS": "200"})


def diff(a: str, b: str, *more: str) -> dict:
    result = invoke("-n", a, "--diff", b, *more, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(a: str, b: str, *more: str) -> str:
    result = invoke("-n", a, "--diff", b, *more)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def run_config(tmp_path: Path) -> str:
    """What a run of `metaworld_ppo_mlp` writes into its directory."""
    cfg = compose_config("metaworld_ppo_mlp", [])
    write_back(cfg, resolve(cfg))
    OmegaConf.save(cfg, tmp_path / "config.yaml", resolve=True)
    return str(tmp_path / "config.yaml")


def test_a_config_of_somebody_elses_run_is_read_within_bounds(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("# " + "x" * (2 << 20))
    said = refusal("metaworld_ppo_mlp", str(config))
    assert "config.yaml cannot be read: it has more than 1,048,576 bytes" in said


def test_only_what_differs_is_listed_by_its_dotted_key():
    found = diff("metaworld_ppo_mlp", "metaworld_grpo_mlp")
    assert found["a"] == "metaworld_ppo_mlp"
    assert found["config"]["algorithm.adv_type"] == {"a": "gae", "b": "grpo"}
    assert found["config"]["algorithm.update_epoch"] == {"a": 8, "b": 4}
    assert "actor.optim.lr" not in found["config"]
    assert found["facts"]["shards.group_size"] == {"a": 1, "b": 8}
    assert found["facts"]["exactness.streamer"]["a"].startswith("exact")
    assert "ranks.env" not in found["facts"]


def test_overrides_apply_to_both_and_what_follows_from_them_is_compared():
    found = diff("metaworld_ppo_mlp", "metaworld_grpo_mlp", "algorithm.update_epoch=1", "async.mode=train")
    assert "algorithm.update_epoch" not in found["config"]
    assert "levels.streamer" not in found["facts"]
    assert "exactness.train" not in found["facts"]


@pytest.mark.parametrize("a_first", [True, False])
def test_a_key_that_only_one_config_has_is_left_out_of_the_other_side(a_first):
    names = ("metaworld_ppo_mlp", "metaworld_ppo_vla")
    found = diff(*(names if a_first else names[::-1]))
    assert found["config"]["warm_start.seed"] == {"a" if a_first else "b": 0}
    shown = invoke("-n", names[0], "--diff", names[1]).output
    assert "(absent)" in shown


def test_a_run_directory_is_compared_by_its_config_and_auto_is_no_difference(run_config):
    assert diff("metaworld_ppo_mlp", run_config)["config"] == {}
    assert diff(run_config, "metaworld_ppo_mlp")["facts"] == {}
    assert diff(run_config, "metaworld_ppo_mlp", "async.rollout.max_wait_ms=5")["config"] == {}
    assert invoke("-n", run_config, "--json").exit_code == 0


def test_equal_configs_say_so():
    shown = invoke("-n", "metaworld_ppo_mlp", "--diff", "metaworld_ppo_mlp")
    assert shown.exit_code == 0
    assert "no key differs" in shown.output


def test_a_reader_gets_two_tables_with_both_names():
    shown = invoke("-n", "metaworld_ppo_mlp", "--diff", "metaworld_grpo_mlp").output
    assert "A is metaworld_ppo_mlp, B is metaworld_grpo_mlp" in shown
    assert "What they do differently" in shown
    assert "algorithm.group_size" in shown


def test_levels_that_are_off_in_one_config_differ_in_what_runs(tmp_path):
    (tmp_path / "stock.yaml").write_text("defaults: [/metaworld_ppo_mlp, _self_]\nasync: {mode: off}\n")
    found = diff("metaworld_ppo_mlp", "stock", "--config-dir", str(tmp_path))["facts"]
    assert found["levels.train"] == {"a": True, "b": False}
    assert found["classes"]["b"] == []
    assert len(found["classes"]["a"]) == 4
    assert "a" in found["shards.total"]
    assert "b" not in found["shards.total"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("metaworld_ppo_mlp", "metaworld_ppo"), "metaworld_grpo_mlp"),
        (
            ("metaworld_ppo_mlp", "/etc/passwd"),
            "/etc/passwd is no config: the name of its file ends in .yaml",
        ),
        (("metaworld_ppo_mlp", "/etc"), "/etc is a directory; name a config in it, as in /etc/config.yaml"),
        (("metaworld_ppo_mlp", "nowhere/config.yaml"), "there is no file nowhere/config.yaml"),
        (("metaworld_ppo_mlp.yaml", "metaworld_ppo_mlp"), "named without .yaml"),
        (
            ("metaworld_ppo_mlp", "metaworld_grpo_mlp", "async.rollout.shards=5"),
            "nearest number of shards",
        ),
    ],
)
def test_a_config_that_is_not_there_or_cannot_run_is_an_error_that_helps(names, words):
    assert words in refusal(*names)


def test_a_file_that_is_no_config_of_a_run_is_named_as_such(tmp_path):
    (tmp_path / "other.yaml").write_text("runner: {seq_length: 1}\n")
    said = refusal("metaworld_ppo_mlp", str(tmp_path / "other.yaml"))
    assert "it lacks cluster, algorithm, env, rollout, actor" in said
