import re
from importlib.util import find_spec

import pytest

pytest.importorskip("omegaconf", reason="a config is OmegaConf's")

from omegaconf import OmegaConf

from rlinf_async.compose import compose_config
from rlinf_async.hosts.host import check_preparations
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats
from rlinf_async.lab.demo.warm_start_block import fill_in

BLOCK = {"demonstrations": 2, "max_epochs": 2, "episodes": 16}


def config(tmp_path, **changes):
    return OmegaConf.create(
        {
            "warm_start": dict(BLOCK),
            "runner": {"ckpt_path": None, "logger": {"log_path": str(tmp_path / "runs" / "one")}},
            "env": {"train": {"obs_stats": None}, "eval": {"obs_stats": None}},
            **changes,
        }
    )


def test_the_key_that_the_block_names_is_filled_and_clones_are_shared(tmp_path, capsys):
    of_verl = {
        "warm_start": {**BLOCK, "policy_key": "vla.ckpt_path"},
        "vla": {"run_dir": str(tmp_path / "runs" / "two"), "ckpt_path": None},
        "runner": None,
    }
    first, second = config(tmp_path), config(tmp_path, **of_verl)
    OmegaConf.set_struct(second, True)
    fill_in(first)
    fill_in(second)
    assert first.runner.ckpt_path == second.vla.ckpt_path
    assert str(tmp_path / "runs" / "warm_starts") in second.vla.ckpt_path
    for cfg in (first, second):
        for part in ("train", "eval"):
            assert ObservationStats.load(cfg.env[part].obs_stats).mean.shape == (39,)
    assert capsys.readouterr().out.count("warm start: the clone solves") == 2


@pytest.mark.parametrize(
    "changes",
    [{"warm_start": None}, {"runner": {"ckpt_path": "mine.pt"}}],
    ids=["no block", "a policy is given"],
)
def test_nothing_is_cloned_without_a_block_or_with_a_policy(changes, tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf_async.lab.demo.warm_start.warm_start", pytest.fail)
    cfg = config(tmp_path, **changes)
    before = OmegaConf.to_container(cfg)
    fill_in(cfg)
    assert OmegaConf.to_container(cfg) == before


DEMOS = {
    "rlinf": [
        ("metaworld_ppo_mlp", "runner.logger.log_path"),
        ("metaworld_grpo_mlp", "runner.logger.log_path"),
    ],
    "verl": [("verl_metaworld_ppo_mlp", "vla.run_dir")],
}
HERE = [demo for framework, demos in DEMOS.items() if find_spec(framework) for demo in demos]


@pytest.mark.parametrize(("name", "place"), HERE)
def test_the_start_of_the_demos_comes_with_the_package(name, place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rlinf_async.lab.demo.warm_start._make", pytest.fail)
    cfg = compose_config(name, [f"{place}={tmp_path / 'runs' / 'one'}"])
    fill_in(cfg)
    assert "cloning" not in capsys.readouterr().out
    assert ObservationStats.load(cfg.env.train.obs_stats).mean.shape == (39,)
    assert not (tmp_path / "runs").exists()


def test_a_config_without_a_run_directory_is_told_which_keys_name_one(tmp_path):
    cfg = config(tmp_path, runner={"ckpt_path": None})
    with pytest.raises(ValueError, match=r"set runner\.logger\.log_path or vla\.run_dir"):
        fill_in(cfg)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (True, "warm_start=True must be a block of keys; take it out by ~warm_start"),
        ({"step": 3}, "unknown key warm_start.step; "),
        ({"episods": 64}, "unknown key warm_start.episods; did you mean 'episodes'"),
        ({"seed": "one"}, "warm_start.seed='one' must be a whole number"),
        ({"learning_rate": None}, "warm_start.learning_rate=None must be a finite number"),
        ({"policy_key": 3}, "warm_start.policy_key=3 must be a text"),
        ({"episodes": 5}, "warm_start.episodes must be a multiple of 16, got 5"),
        ({"action_repeat": 0}, "warm_start.action_repeat must be at least 1, got 0"),
        ({"task_name": "open-door"}, "warm_start.task_name='open-door' is no task of Meta-World"),
        ({"lowest_success": 0.9}, "warm_start needs 0 <= lowest_success=0.9"),
    ],
)
def test_a_block_that_no_start_can_be_made_of_is_refused_by_its_key_and_explain_says_the_same(block, said):
    cfg = OmegaConf.create({"warm_start": block, "runner": {"ckpt_path": None}})
    for refusing in (fill_in, check_preparations):
        with pytest.raises(ValueError, match=re.escape(said)):
            refusing(cfg)


def test_a_check_clones_nothing(tmp_path):
    check_preparations(config(tmp_path))
    assert list(tmp_path.iterdir()) == []
