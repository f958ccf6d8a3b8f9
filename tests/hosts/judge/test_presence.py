"""A policy is counted by what its package says of its size, and else by building it without its weights."""

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest
import torch

from rlinf_async import entry_points, hosts
from rlinf_async.hosts.judge.presence import (
    FILE_WORDS,
    PATH_WORDS,
    file_reasons,
    folder_reasons,
    model_reasons,
    package_reasons,
)
from rlinf_async.hosts.judge.table import Key, Table, kind_of, read_rows
from rlinf_async.hosts.kit.policy_size import SIZES_GROUP, parameters


@pytest.fixture
def declared(monkeypatch):
    """A package `theirs` whose model `layer` is built by `build` and, if it is given, counted by `count`."""

    def declare(build, count=None):
        module = ModuleType("theirs")
        module.build, module.count = build, count
        monkeypatch.setitem(sys.modules, "theirs", module)
        points = {entry_points.MODELS_GROUP: [EntryPoint("layer", "theirs:build", entry_points.MODELS_GROUP)]}
        if count is not None:
            points[SIZES_GROUP] = [EntryPoint("layer", "theirs:count", SIZES_GROUP)]

        monkeypatch.setattr(entry_points, "provided", lambda group: EntryPoints(points.get(group, [])))

    return declare


class Layer(torch.nn.Linear):
    def predict_action_batch(self, **_):
        """Never called."""


def layer(cfg, _):
    return Layer(cfg.inputs, 2)


def refusal(section):
    return [reason.text for reason in model_reasons(section, key="model")]


def test_a_model_of_which_nothing_is_said_is_built_without_memory(declared):
    built = []

    def build(cfg, dtype):
        built.append(layer(cfg, dtype))
        return built[0]

    declared(build)
    assert parameters({"model_type": "layer", "inputs": 10**6}, key="model") == 2 * 10**6 + 2
    assert built[0].weight.is_meta


def test_a_model_that_says_its_size_is_not_built(declared):
    declared(lambda cfg, dtype: pytest.fail("it was built"), count=lambda section: 7 * section["inputs"])
    assert parameters({"model_type": "layer", "inputs": 3}, key="model") == 21
    assert refusal({"model_type": "layer", "inputs": 3}) == []


@pytest.mark.parametrize("says", [False, True])
def test_what_cannot_be_built_is_refused_in_the_words_of_its_package(declared, says):
    def refuse(section, *_):
        raise ValueError("inputs must be\n  more than that")

    declared(refuse, count=refuse if says else None)
    said = ["model does not make a layer: ValueError: inputs must be more than that"]
    assert refusal({"model_type": "layer"}) == said


@pytest.mark.parametrize("says", [False, True])
def test_a_package_that_is_missing_is_named(declared, says):
    def absent(section, *_):
        raise ModuleNotFoundError("No module named 'theirs.weights'")

    declared(absent, count=absent if says else None)
    said = ["model.model_type=layer cannot be imported: No module named 'theirs.weights'"]
    assert refusal({"model_type": "layer"}) == said


def test_a_model_with_a_checkpoint_is_left_to_the_run(declared):
    declared(lambda cfg, dtype: pytest.fail("it was built"))
    assert refusal({"model_type": "layer", "model_path": "/somewhere"}) == []


KINDS = {"ckpt": FILE_WORDS, "good": FILE_WORDS, "model": PATH_WORDS}
PATHS = Table([Key(name=name, kind=kind_of(words)) for name, words in KINDS.items()])


@pytest.mark.parametrize("host", ["local", "rlinf", "verl"])
def test_each_hosts_table_says_which_keys_name_files_and_the_folder_of_a_run(host):
    keys = Path(hosts.__file__).parent / host / "keys.toml"
    table = Table(read_rows(keys)[0])
    paths = {
        "local": ["model.model_path"],
        "rlinf": ["actor.model.model_path", "rollout.model.model_path"],
        "verl": ["vla.model.model_path"],
    }
    files = {"local": [], "rlinf": ["runner.ckpt_path", "runner.expert_ckpt_path"], "verl": ["vla.ckpt_path"]}
    folder = {"local": "run_dir", "rlinf": "runner.logger.log_path", "verl": "vla.run_dir"}[host]
    cfg = {}
    for number, key in enumerate([*paths[host], *files[host], folder]):
        *sections, name = key.split(".")
        place = cfg
        for each in sections:
            place = place.setdefault(each, {})
        place[name] = f"/dev/null/{number}"
    said = [reason.text.partition("=")[0] for reason in file_reasons(cfg, table)]
    assert sorted(said) == sorted([*paths[host], *files[host]])
    (reason,) = folder_reasons(cfg, table)
    assert f"({folder}) cannot be written" in reason.text


def test_a_folder_is_no_file_of_weights(tmp_path):
    (tmp_path / "policy.pt").write_bytes(b"")
    cfg = {"ckpt": str(tmp_path), "model": str(tmp_path), "good": str(tmp_path / "policy.pt")}
    (reason,) = file_reasons(cfg, PATHS)
    assert reason.text == f"ckpt={tmp_path} is a folder; name the file of weights in it"


def test_a_key_that_always_names_a_file_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.pt").write_bytes(b"")
    cfg = {"ckpt": "nowhere.pt", "model": "org/name", "good": "policy.pt"}
    (reason,) = file_reasons(cfg, PATHS)
    assert reason.text.startswith("ckpt=nowhere.pt does not exist")


def test_a_path_from_the_home_folder_is_refused_as_no_loader_of_weights_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "policy.pt").touch()
    assert list(file_reasons({"ckpt": str(tmp_path / "policy.pt")}, PATHS)) == []
    (reason,) = file_reasons({"ckpt": "~/policy.pt"}, PATHS)
    assert reason.text == "ckpt=~/policy.pt does not exist; use the path without ~"


def test_each_missing_package_is_named_with_its_own_remedy():
    packages = {"first": "absent_one", "second": "absent_two", "third": "torch"}
    said = [reason.text for reason in package_reasons("loggers", ["first", "second", "third"], packages)]
    assert [text.rpartition("; ")[2] for text in said] == [
        "install it: pip install absent_one",
        "install it: pip install absent_two",
    ]
