"""Tutorials and guides: their commands as they stand there, and the numbers that `explain` says."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlinf_async import cli
from tests.test_docs import blocks

DOCS = Path(__file__).parents[1] / "docs"
GB = 1e9


def page(name: str) -> str:
    (path,) = DOCS.rglob(f"{name}.md")
    return path.read_text()


def commands(name: str, kind: str) -> list[list[str]]:
    """The arguments of every `rlinf-async KIND` in the page's code blocks."""
    found = (shlex.split(line, comments=True) for line in blocks(page(name)))
    return [words[2:] for words in found if words[:2] == ["rlinf-async", kind]]


def cells(name: str, first: str) -> list[str]:
    """The row of a table that begins with `first`, without that cell."""
    (row,) = re.findall(rf"^\| {re.escape(first)} \|(.*)\|$", page(name), re.MULTILINE)
    return [cell.strip() for cell in row.split(" | ")]


def explained(words: list[str], examples: Path) -> dict[str, Any]:
    """What the command answers, as data."""
    from rlinf_async.compose import compose_config
    from rlinf_async.hosts.host import AssumedCluster
    from rlinf_async.hosts.rlinf.explain import explain

    rest = list(words)
    assert rest[:2] == ["--config-dir", "$EMBODIED_PATH/config"]
    assert rest[2] in ("-n", "--config-name")
    name, options, overrides = rest[3], {}, rest[4:]
    for option, key, unit in (("--gpus", "gpus", 1), ("--gpu-memory", "gpu_memory", None)):
        if option in overrides:
            at = overrides.index(option)
            value = overrides[at + 1]
            options[key] = int(value) * unit if unit else float(value) * GB
            del overrides[at : at + 2]
    return explain(compose_config(name, overrides, examples), AssumedCluster(**options))


def test_explain_of_the_libero_config_says_what_the_page_says(examples):
    facts = explained(commands("rlinf-pi05", "explain")[0], examples)
    assert cells("rlinf-pi05", "levels")[0] == ", ".join(key for key, on in facts["levels"].items() if on)
    assert cells("rlinf-pi05", "max staleness")[0] == str(facts["max_staleness"])
    ranks = ", ".join(f"{name} {count}" for name, count in facts["ranks"].items())
    assert cells("rlinf-pi05", "ranks")[0] == ranks
    shards, batch = facts["shards"], facts["batch"]
    assert cells("rlinf-pi05", "shards")[0] == f"{shards['total']}, {shards['per_env_worker']} per env worker"
    assert cells("rlinf-pi05", "a step")[0] == (
        f"{batch['trajectories_per_step']} trajectories, {batch['samples_per_step']} samples, "
        f"{batch['env_steps_per_step']} env steps"
    )
    assert cells("rlinf-pi05", "training")[0] == (
        f"{batch['optimizer_steps_per_step']} optimizer steps of {batch['global_batch_size']} samples"
    )
    assert facts["exactness"]["streamer"].startswith(cells("rlinf-pi05", "streamer")[0])


def test_the_memory_of_the_libero_page_is_what_explain_estimates(examples):
    as_it_is, sharded, apart = (explained(words, examples) for words in commands("rlinf-pi05", "explain"))
    rows = (
        ("all on all GPUs, `no_shard` (the YAML)", as_it_is, 0),
        ("all on all GPUs, `full_shard`", sharded, 0),
        ("apart, `no_shard`: learner GPUs", apart, 0),
        ("apart, `no_shard`: inference and environment GPUs", apart, 1),
    )
    for first, facts, gpu in rows:
        billion, whole = cells("rlinf-pi05", first)
        assert float(billion) == facts["memory"]["per_gpu"][gpu]["total"] / GB
        assert float(whole.removesuffix(" GB")) == pytest.approx(3.3 * float(billion))
    assert [each["learner_ranks"] for each in apart["memory"]["per_gpu"]] == [1, 0]
    assert as_it_is["memory"]["remembered"] == 2
    assert f"{as_it_is['memory']['remembered_bytes'] / GB:g} GB per billion parameters" in page("rlinf-pi05")


def test_the_sweep_of_the_libero_page_is_three_settings_of_twelve_steps(examples, tmp_path):
    from rlinf_async.compose import compose_config
    from rlinf_async.lab.sweep import command

    (words,) = commands("rlinf-pi05", "sweep")
    overrides = [word for word in words if "=" in word]
    name = words[words.index("--config-name") + 1]
    planned = command.plan(
        compose_config(name, overrides, examples),
        config_name=name,
        config_dir=examples,
        overrides=overrides,
        modes=words[words.index("--modes") + 1],
        seeds=1,
        output=tmp_path / "sweep",
    )
    assert [cell.setting.name for cell in planned.cells] == ["off", "train", "full"]
    assert all("runner.max_epochs=12" in cell.command for cell in planned.cells)


def test_the_training_command_of_the_libero_page_composes_and_lacks_nothing_but_the_model(examples, tmp_path):
    """With the page's placeholder it is refused for it alone; with a folder in its place for nothing."""
    from rlinf_async.compose import compose_config
    from rlinf_async.hosts.rlinf.host import RLinfHost

    (line,) = (
        line for line in blocks(page("rlinf-pi05")) if line.lstrip().startswith("python $EMBODIED_PATH")
    )
    words = shlex.split(line)
    name = words[words.index("--config-name") + 1]
    overrides = [word for word in words if "=" in word]
    absent = RLinfHost().absent(compose_config(name, overrides, examples))
    wanted = [reason for reason in absent if "needs the package" not in reason]
    assert [reason.partition(" ")[0] for reason in wanted] == ["actor.model.model_path=/path/to/model"]
    (tmp_path / "model").mkdir()
    here = [word.replace("/path/to/model", str(tmp_path / "model")) for word in overrides]
    absent = RLinfHost().absent(compose_config(name, here, examples))
    assert [reason for reason in absent if "needs the package" not in reason] == []


LINES_RUN_ELSEWHERE = {
    "pip install .": "tests/test_packaging.py",
    "export EMBODIED_PATH=": "a path of the user's",
    "rlinf-async doctor": "tests/doctor",
    "rlinf-async explain": "test_explain_of_the_libero_config_says_what_the_page_says and the next",
    "rlinf-async sweep": "test_the_sweep_of_the_libero_page_is_three_settings_of_twelve_steps",
    "python $EMBODIED_PATH/train_embodied_agent.py": "the test above; tests/vla/test_runs.py: tiny weights",
}
"""What each line of the page on pi0.5 is executed by, by its beginning."""


def test_every_line_of_the_libero_page_is_executed_by_a_test():
    lines = [line.strip() for line in blocks(page("rlinf-pi05")) if line.strip()]
    assert len(lines) > 6
    assert [line for line in lines if not line.startswith(tuple(LINES_RUN_ELSEWHERE))] == []


def test_maniskill_on_a_gpu_is_not_split(examples):
    mlp, openpi, apart = (
        explained(words, examples) for words in commands("choosing", "explain") if "--gpus" in words
    )
    shards = [(each["shards"]["total"], each["shards"]["environments_each"]) for each in (mlp, openpi, apart)]
    assert shards == [(1, 1024), (8, 40), (4, 80)]
    said = page("choosing")
    assert all(
        each in said for each in ("shows 1 shard of 1024 environments", "shows 8 shards of 40", ", 4 of 80")
    )
    assert "level 2 has one shard in all, and changes nothing" in mlp["remarks"]
    assert any("batches of 1024" in remark for remark in mlp["remarks"])
    assert set(apart["ranks"].values()) == {4}


def test_maniskill_on_the_cpu_has_a_shard_for_each_environment():
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    assert "`rlinf-async explain maniskill_ppo_mlp` shows 8." in page("choosing")
    result = CliRunner().invoke(cli.app, ["explain", "maniskill_ppo_mlp", "--json"])
    assert result.exit_code == 0, result.output
    assert re.search(r'"total": 8,\s+"per_env_worker": 8,\s+"environments_each": 1', result.output)


def test_keys_of_rlinfs_asynchronous_ppo_become_what_the_page_says(examples):
    (words,) = commands("comparison", "explain")
    facts = explained(words, examples)
    said = " ".join(map(str, facts["translated"]))
    for key in ("algorithm.staleness_threshold: 1", "algorithm.behave_weight_threshold: 2.0"):
        (ours,) = cells("comparison", f"`{key}`")
        assert key.replace(": ", "=") in said
        for each in re.findall(r"`([^`]+)`", ours):
            assert each.replace(": ", "=") in said
    assert (facts["max_staleness"], facts["correction"], facts["max_weight"]) == (1, "tis", 2.0)


def test_keys_without_effect_are_those_of_the_page(examples):
    from rlinf_async.hosts.rlinf.keys import TABLE

    rows = re.findall(r"^\| `([\w.]+)` \| (no effect|refused)", page("comparison"), re.MULTILINE)
    assert len(rows) == 4
    assert {key: TABLE.find(key).fate for key, _ in rows} == {
        key: said.replace("no effect", "without effect") for key, said in rows
    }


def test_the_commands_of_the_page_on_reports_work_as_they_stand(tmp_path, monkeypatch):
    pytest.importorskip("jinja2", reason="pages are made with it")
    monkeypatch.chdir(tmp_path)
    for line in blocks((DOCS / "report.md").read_text()):
        result = CliRunner().invoke(cli.app, shlex.split(line)[1:])
        assert result.exit_code == 0, f"{line}: {result.output}"
        if " train " in line:
            assert "produced 1280 = trained 1280 + in flight 0 + 0 refused" in result.output
        if " status " in line:
            assert "1280 of 1280 trajectories trained" in result.output
    written = {path.name: path.read_text(errors="replace") for path in tmp_path.iterdir() if path.is_file()}
    assert set(written) == {"full.html", "comparison.html", "trace.json.gz"}
    assert "overlap efficiency" in written["full.html"]
    assert all(f">{run}<" in written["comparison.html"] for run in ("off", "full"))


def test_explain_of_rlinfs_isaac_lab_config_says_what_the_page_says(examples):
    words = commands("isaac-lab", "explain")[-1]
    facts = explained(words, examples)
    train, rollout, streamer = (
        cells("isaac-lab", level)[0] for level in ("1 train", "2 rollout", "3 streamer")
    )
    epochs, pieces = (re.findall(r"\d+", cell) for cell in (train, streamer))
    said = " ".join(facts["remarks"])
    assert f"the learner makes {epochs[0]} update epochs of this one" in said
    assert f"for up to {pieces[0]} of {pieces[1]} pieces before the last has come" in said
    assert facts["exactness"]["streamer"].startswith("exact")
    shards = facts["shards"]
    assert rollout.startswith(f"{shards['total']} shards, {shards['per_env_worker']} per env worker")
    assert [(each["key"], each["value"]) for each in facts["changes"]] == [("rollout.enable_offload", False)]


def test_what_the_isaac_lab_page_writes_is_what_isaac_labs_yaml_needs(tmp_path):
    pytest.importorskip("rlinf", reason="RLinf is not installed")
    yaml = (Path(__file__).parent / "runs" / "isaac_like" / "ppo_reach.yaml").read_text()
    theirs = yaml[: yaml.index("weight_syncer:")]
    block, syncer = re.findall(r"```yaml\n(.*?)```", page("isaac-lab"), re.DOTALL)
    asked = ["explain", "--config-dir", str(tmp_path), "-n", "mine", "--gpus", "1"]

    (tmp_path / "mine.yaml").write_text(theirs + block)
    result = CliRunner().invoke(cli.app, asked)
    assert result.exit_code != 0
    as_override = syncer.strip().replace(": ", "=", 1)
    assert f"RLinf's workers end without one; use '+{as_override}'" in " ".join(result.output.split())

    (tmp_path / "mine.yaml").write_text(theirs + block + syncer)
    result = CliRunner().invoke(cli.app, asked)
    assert result.exit_code == 0, result.output
    assert re.search(r"levels +│ train, rollout, streamer", result.output)
