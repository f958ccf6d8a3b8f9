"""The setups of the RL-VLA3 paper over RLinf's own YAMLs: what they compose to, and what `explain` says."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.compose import compose_config
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf.explain import explain
from rlinf_async.lab.sweep import command
from tests.checkouts import EMBODIED, RELEASED, configs

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
GPUS = 8


@dataclass(frozen=True)
class Setup:
    """A row of the paper's table 2."""

    letter: str
    config: str
    envs: int
    envs_three_to_one: int
    episode: int
    rollout_epochs: int
    update_epochs: int
    micro_batch: int
    global_batch: int
    chunk: int

    def __str__(self):
        return self.letter

    @property
    def overrides(self):
        return [f"+paper=rl_vla3_{self.letter.lower()}"]

    def samples(self, envs):
        return envs * self.rollout_epochs * self.episode // self.chunk


SETUPS = [
    Setup("A", "libero_10_ppo_openpi", 128, 192, 480, 4, 4, 128, 2048, 10),
    Setup("B", "libero_10_grpo_openvlaoft", 128, 192, 512, 4, 4, 32, 16384, 8),
    Setup("C", "libero_10_ppo_openpi_pi05", 64, 192, 480, 8, 1, 128, 2048, 10),
    Setup("D", "libero_10_ppo_gr00t", 64, 192, 480, 8, 1, 128, 1024, 10),
    Setup("E", "maniskill_ppo_openpi", 256, 768, 80, 4, 4, 64, 4096, 5),
    Setup("F", "maniskill_ppo_openvlaoft", 256, 768, 80, 4, 4, 32, 2048, 8),
]
"""The paper's numbers, for one node of eight GPUs."""

ANEW = "~cluster.component_placement"
PLACEMENTS = {
    "colocated": ([ANEW, "+cluster.component_placement={env:all,rollout:all,actor:all}"], (8, 8, 8)),
    "1:1": ([ANEW, "+cluster.component_placement={env:0-3,rollout:0-3,actor:4-7}"], (4, 4, 4)),
    "3:1": ([ANEW, "+cluster.component_placement={env:0-5,rollout:0-5,actor:6-7}"], (6, 6, 2)),
}


def explained(setup, examples, *overrides, **cluster):
    cfg = compose_config(setup.config, [*setup.overrides, *overrides, "async.mode=full"], examples)
    return explain(cfg, AssumedCluster(**cluster))


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_every_placement_of_a_setup_runs_with_all_levels_and_the_papers_sizes(setup, examples):
    for name, (placement, ranks) in PLACEMENTS.items():
        envs = setup.envs_three_to_one if name == "3:1" else setup.envs
        facts = explained(setup, examples, *placement, f"env.train.total_num_envs={envs}", gpus=GPUS)
        assert facts["levels"] == {"train": True, "rollout": True, "streamer": True}, name
        assert tuple(facts["ranks"][part] for part in ("env", "inference", "learner")) == ranks
        batch = facts["batch"]
        assert batch["trajectories_per_step"] == envs * setup.rollout_epochs
        assert batch["samples_per_step"] == setup.samples(envs)
        assert batch["global_batch_size"] == setup.global_batch
        assert batch["micro_batch_size"] == setup.micro_batch
        steps = setup.samples(envs) // setup.global_batch * setup.update_epochs
        assert batch["optimizer_steps_per_step"] == steps
        if setup.config.startswith("maniskill"):
            assert facts["shards"]["total"] == facts["ranks"]["env"]  # a simulator on the GPU is not split


@pytest.mark.parametrize("nodes", [2, 4])
def test_more_nodes_have_more_environments_and_larger_batches_and_as_many_steps(nodes, examples):
    for setup in SETUPS:
        half = 4 * nodes
        placement = f"env:0-{half - 1},rollout:0-{half - 1},actor:{half}-{2 * half - 1}"
        sizes = (
            f"env.train.total_num_envs={nodes * setup.envs}",
            f"actor.global_batch_size={nodes * setup.global_batch}",
        )
        of_placement = (ANEW, f"+cluster.component_placement={{{placement}}}", f"cluster.num_nodes={nodes}")
        facts = explained(setup, examples, *of_placement, *sizes, gpus=GPUS)
        assert facts["ranks"]["learner"] == facts["ranks"]["inference"] == half
        assert facts["batch"]["samples_per_step"] == nodes * setup.samples(setup.envs)
        once = setup.samples(setup.envs) // setup.global_batch
        assert facts["batch"]["optimizer_steps_per_step"] == once * setup.update_epochs


def test_a_sweep_of_a_setup_has_the_papers_rows_and_the_command_of_the_page(examples, tmp_path):
    setup = SETUPS[2]
    overrides = [*setup.overrides, ANEW, "+cluster.component_placement={env:0,rollout:0,actor:0}"]
    overrides += ["actor.model.model_path=/models/pi05", "rollout.model.model_path=/models/pi05"]
    cfg = compose_config(setup.config, [*overrides, "async.mode=full"], examples)
    planned = command.plan(
        cfg,
        config_name=setup.config,
        config_dir=examples,
        overrides=overrides,
        modes="ladder",
        seeds=1,
        output=tmp_path / "sweep",
    )
    assert [cell.setting.name for cell in planned.cells] == [
        *("off", "train", "train+rollout", "levels", "full")
    ]
    assert all(set(overrides) < set(cell.command) for cell in planned.cells)
    assert planned.cells[0].workload.stock.env_steps == 64 * 8 * 480


def commands(kind):
    """What the page's commands of this kind give to Hydra: (config, overrides)."""
    for line in re.findall(rf"^    rlinf-async {kind} (.*)$", PAGE.read_text(), re.MULTILINE):
        words = shlex.split(line)
        name = words[words.index("--config-name") + 1]
        yield name, [word for word in words if "=" in word or word.startswith("~")], words


def test_the_commands_of_the_page_say_what_they_are_for(examples):
    found = [(name, overrides) for name, overrides, _ in commands("explain")]
    assert len(found) == 3
    facts = [
        explain(compose_config(name, given, examples), AssumedCluster(gpus=GPUS)) for name, given in found
    ]
    assert [each["ranks"]["learner"] for each in facts] == [4, 2, 8]
    assert [each["batch"]["optimizer_steps_per_step"] for each in facts] == [12, 36, 12]
    ladder, colocated = commands("sweep")
    assert "--modes" not in ladder[2]
    for name, given, _ in (ladder, colocated):
        placed = explain(
            compose_config(name, [*given, "async.mode=full"], examples), AssumedCluster(gpus=GPUS)
        )
        assert placed["batch"]["samples_per_step"] == SETUPS[2].samples(64)


def test_the_table_of_the_page_is_what_is_tested():
    setups, _, _ = PAGE.read_text().partition("### Dead work in the setups")
    rows = re.findall(r"^\| ([A-F]) \|(.*)\|$", setups, re.MULTILINE)
    written = {letter: [cell.strip() for cell in cells.split("|")] for letter, cells in rows}
    expected = {
        setup.letter: [
            f"`{setup.config}`",
            f"{setup.envs} ({setup.envs_three_to_one})",
            *map(str, (setup.episode, setup.rollout_epochs, setup.update_epochs)),
            *map(str, (setup.micro_batch, setup.global_batch, setup.chunk)),
            str(setup.samples(setup.envs) // setup.global_batch * setup.update_epochs),
        ]
        for setup in SETUPS
    }
    assert {letter: cells[1:] for letter, cells in written.items()} == expected


@pytest.fixture
def released(monkeypatch):
    """The YAMLs of the release that the page is made of."""
    root = configs(RELEASED) / EMBODIED
    monkeypatch.setenv("EMBODIED_PATH", str(root))
    return root / "config"


@pytest.fixture
def generator(monkeypatch):
    monkeypatch.syspath_prepend(PAGE.parent)
    import generate_papers

    yield generate_papers
    sys.modules.pop("generate_papers")


def test_the_page_says_of_dead_work_in_the_setups_what_explain_says(generator, released):
    assert {setup.letter: setup.config for setup in SETUPS} == generator.SETUPS
    page = PAGE.read_text()
    assert generator.generate(page, released) == page


def test_a_video_of_decisions_alone_leaves_out_the_frames_between_them(generator, released):
    for setup in SETUPS[:4]:
        left_out, kept = generator.found(setup.letter, released, generator.VIDEO)["frames"]
        assert f"{1 - 1 / setup.chunk:.0%}" in left_out
        assert not kept
