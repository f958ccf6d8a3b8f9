"""`rlinf-async compat TREE`, on the trees at hand and on one that has moved on."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlinf_async.cli import app
from rlinf_async.hosts.rlinf.checkout import EXAMPLES_FOLDER, KNOWN_EXAMPLES, look_at
from tests.checkouts import RELEASED, TREES, checkout, configs

DOCS = Path(__file__).parents[3] / "docs"


def run(*arguments):
    return CliRunner().invoke(app, ["compat", *map(str, arguments)])


@pytest.mark.parametrize("name", TREES)
def test_the_trees_at_hand_have_every_name_and_no_example_that_is_new(name):
    found = run(checkout(name))
    assert found.exit_code == 0, found.output
    assert "every name that is needed is there" in found.output
    assert "every on-policy config is known" in found.output


def test_the_digests_are_those_of_the_trees_at_hand(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import generate_rlinf_configs

    assert generate_rlinf_configs.known([configs(name) for name in TREES]) == KNOWN_EXAMPLES.read_text()
    sys.modules.pop("generate_rlinf_configs")


@pytest.fixture
def moved(tmp_path):
    """A tree that has renamed a method, changed an example, added two, and put a comment into one."""
    root = tmp_path / "RLinf"
    source = checkout(RELEASED)
    shutil.copytree(source / "rlinf", root / "rlinf")
    shutil.copytree(source / EXAMPLES_FOLDER, root / EXAMPLES_FOLDER)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)
    worker = root / "rlinf" / "workers" / "rollout" / "hf" / "huggingface_worker.py"
    moon = "    def orbit(self):\n        return self.cfg.rollout.moon.radius\n\n"
    worker.write_text(worker.read_text().replace("    def predict(", f"{moon}    def act("))
    losses = root / "rlinf" / "algorithms" / "losses.py"
    losses.write_text(f'{losses.read_text()}\n@register_policy_loss("moon_loss")\ndef moon(): ...\n')
    config = root / "rlinf" / "config.py"
    model = 'SupportedModel.MOON = SupportedModel.register("moon_model")\nEMBODIED_MODEL = set('
    config.write_text(
        config.read_text()
        .replace("EMBODIED_MODEL = set(", model)
        .replace("SupportedModel.OPENPI,", "SupportedModel.OPENPI, SupportedModel.MOON,")
    )
    envs = root / "rlinf" / "envs" / "__init__.py"
    envs.write_text(
        envs.read_text().replace('    LIBERO = "libero"', '    LIBERO = "libero"\n    MOON = "moon"')
    )
    examples = root / EXAMPLES_FOLDER
    new = (examples / "maniskill_ppo_mlp.yaml").read_text()
    (examples / "moon_ppo_mlp.yaml").write_text(f"{new}\nreward:\n  moon: 3\n")
    (examples / "moon_sac_mlp.yaml").write_text("algorithm:\n  loss_type: embodied_sac\n")
    (examples / "maniskill_ppo_mlp.yaml").write_text(new.replace("gamma:", "gamma_of_moon:"))
    told = examples / "metaworld_50_ppo_openpi.yaml"
    told.write_text(f"# another comment\n{told.read_text()}")
    return root


def test_what_a_tree_has_taken_away_added_and_changed_is_named(moved):
    found = run(moved)
    assert found.exit_code == 1, found.output
    lines = found.output.splitlines()
    assert "lacks    MultiStepRolloutWorker.predict (for answers of inference)" in lines
    assert "adds     moon_ppo_mlp" in lines
    (changed,) = (line for line in lines if line.startswith("changes"))
    assert changed.startswith("changes  maniskill_ppo_mlp, with keys that are not examined:")
    assert "algorithm.gamma_of_moon" in changed
    assert "values   loss_type: refused are moon_loss" in lines
    (models,) = (
        line for line in lines if line.startswith("values   model_type: level 2 is not examined with ")
    )
    assert models.endswith(", moon_model, resnet, value_model")
    (simulators,) = (line for line in lines if line.startswith("values   env_type: one shard "))
    assert simulators.endswith(" moon, realworld")
    assert "reads    keys that are not examined: rollout.moon, rollout.moon.radius" in lines
    assert len(lines) == 8
    plain = json.loads(run(moved, "--json").output)
    assert plain["added"] == ["moon_ppo_mlp"]
    assert plain["unknown_values"]["loss_type"] == ["moon_loss"]


def test_a_folder_without_rlinf_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no package rlinf"):
        look_at(tmp_path)
    assert run(tmp_path).exit_code == 2


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("workers/env/env_worker.py", b"def (((", "line 1, cannot be read as Python"),
        ("workers/env/env_worker.py", b"\xff\xfe\x00", "cannot be read as Python"),
        ("../examples/embodiment/config/a.yaml", b"a: [", "a.yaml cannot be read as a config"),
        ("../examples/embodiment/config/a.yaml", b"- a", "a.yaml cannot be read as a config"),
        ("../examples/embodiment/config/a.yaml", b"\xff\x00", "a.yaml cannot be read as a config"),
    ],
    ids=range(5),
)
def test_a_damaged_file_of_a_tree_is_named(tmp_path, file, content, words):
    package = tmp_path / "rlinf"
    path = package / file
    for folder in (package, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    path.write_bytes(content)
    found = run(tmp_path)
    assert found.exit_code == 2
    assert words in found.output
    assert len(found.output.splitlines()) == 1
