"""What is wrong with a user's YAML is one sentence with file and line, and ends the command with status 2."""

from __future__ import annotations

import codecs
import importlib
import json
import os
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from typer.testing import CliRunner

from rlinf_async import cli, config_files
from rlinf_async.core.config_keys import MODE_PRESETS, misplaced
from rlinf_async.hosts.rlinf import doorway
from rlinf_async.observe.yaml_data import FAST_YAML_LOADER
from tests.checkouts import EMBODIED, configs
from tests.fresh import printed

BASE = "defaults: [/metaworld_ppo_mlp, _self_]\n"


def multiplying(aliases: int, lines: int) -> str:
    """YAML every line of which stands for so many of the one before."""
    each = (f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * aliases)}]\n" for i in range(1, lines))
    return f"a0: &a0 [{', '.join('x' * aliases)}]\n" + "".join(each)


BOMB = multiplying(8, 12)

WRONG_FILES: dict[str, tuple[bytes, str]] = {
    "tab": (b"runner:\n\tmax_epochs: 3\n", "line 3: found character '\\t' that cannot start any token"),
    "unclosed bracket": (b"x: [1\nrunner: {}\n", "line 3: expected ',' or ']', but got ':'"),
    "unclosed quote": (b"x: 'a\n", "line 3: found unexpected end of stream"),
    "a key twice": (
        b"runner: {}\nalgorithm: {}\nrunner: {}\n",
        "line 4: the key runner stands in line 2 alr",
    ),
    "a key twice below": (b"runner:\n  a: 1\n  b: 2\n  a: 3\n", "line 5: the key a stands in line 3 already"),
    "a key twice in a line": (b"runner: {a: 1, a: 2}\n", "line 2: the key a stands in line 2 already"),
    "Latin-1": ("x: café\n".encode("latin-1"), "line 2: byte 0xe9 is not UTF-8; save the file as UTF-8"),
    "an unknown alias": (b"x: *nope\n", "line 2: found undefined alias 'nope'"),
    "an alias of itself": (b"x: &a [*a]\n", "line 2: an alias is inside the value that it stands for"),
    "aliases that multiply": (BOMB.encode(), "has more than 100000 values with its aliases written out"),
    "aliases beyond what is written out": (multiplying(2, 15_000).encode(), "has more than 100000 values"),
    "depth": (b"x: " + b"[" * 3000 + b"]" * 3000, "nests its values too deeply"),
    "an unknown tag": (b"x: !foo bar\n", "line 2: could not determine a constructor for the tag '!foo'"),
    "two documents": (b"---\nx: 1\n", "line 2: but found another document"),
    "a list as key": (b"? [a, b]\n: 1\n", "line 2: a key is one word, and this is a list or a block"),
    "null as key": (b"x:\n  ~: 3\n", "line 3: the key ~ is null for YAML; write it in quotes"),
    "a key with a space": (
        b"x:\n  'a ': 3\n",
        "line 3: the key 'a ' has a space at one of its ends; take it out",
    ),
    "a key with a space that does not break": ("x:\n  a\xa0: 3\n".encode(), "has a space at one of its ends"),
    "a set": (b"x: !!set {a, b}\n", "line 2: a config has no values of the type !!set; write a list"),
    "a character of the keyboard's": (
        b"x: 1\ny: 'a\x07'\n",
        "line 3: YAML does not allow the character '\\x07'; take it out",
    ),
    "a broken interpolation": (b"x: '${oops'\n", "no viable alternative at input '${oops', in x"),
}
"""What follows the defaults list in the user's file, and the answer."""

WHOLE_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; write at least its defaults"),
    "comments": (b"# nothing\n", "is empty; write at least its defaults"),
    "a list": (b"- a\n- b\n", "line 1: this is a list, and a config has keys"),
    "a word": (b"hello\n", "line 1: this is one value, and a config has keys"),
    "UTF-16": (codecs.BOM_UTF16_LE + BASE.encode("utf-16-le"), "is in UTF-16; save it as UTF-8"),
    "defaults that are none": (b"defaults: 3\n", "defaults must be a list"),
    "defaults that name each other": (b"defaults: [mine]\n", "mine name each other in a circle"),
    "a default that overrides nothing": (
        b"defaults: [local/point_reach, override part: one]\n",
        "overrides part, which no defaults list has chosen; write it there without the word override",
    ),
    "a list for a block": (
        b"defaults: [metaworld_ppo_mlp, _self_]\ncluster: {component_placement: {actor: [0, 1]}}\n",
        "cluster.component_placement.actor has a list where another file of the config has a block of keys",
    ),
    "defaults with a null": (b"defaults: [null]\n", "defaults must be a list of configs, as in defaults: ["),
    "a choice that is made twice": (
        b"defaults: [metaworld_ppo_mlp, async: full]\n",
        "choose async twice; take one out, or write override async: ...",
    ),
    "hydra's block as a word": (
        b"defaults: [local/point_reach]\nhydra: no\n",
        "hydra must be a block of keys",
    ),
    "a section with a letter too few": (
        b"cluster: {}\nrunner: {}\nalgoritm: {}\nenv: {}\nrollout: {}\nactor: {}\n",
        "the section algoritm is none of RLinf's, and algorithm is missing; write algorithm: ...",
    ),
    "a host of nobody": (
        b"defaults: [local/point_reach, _self_]\nhost: lokal\n",
        "host=lokal chooses nothing: the only host that a config names is local",
    ),
    "a block of nobody's": (
        b"defaults: [local/point_reach, _self_]\nasync: ${my}\n",
        "async reads my, which the config does not have; add it, or write a value for async",
    ),
    "a folder of a shell's": (
        b"defaults: [local/point_reach, _self_]\nrun_dir: $HOME/runs\n",
        "run_dir=$HOME/runs is no path of this machine; name a folder in full, without ~, $ and ://",
    ),
    "an interpolation of itself": (
        b"defaults: [local/point_reach]\na: ${b}\nb: ${a}\n",
        "Recursive interpolation detected, in a; write a value there",
    ),
    "a resolver of a script": (
        b"defaults: [local/point_reach]\nx: {y: '${mine:3}'}\n",
        "x.y asks for the resolver mine, which is not registered here; write the value, as in x.y=...",
    ),
    "sections of nobody": (b"what: 3\n", "no host runs this config, whose keys are what: local needs"),
    "a robot's host": (
        b"host: robot-7\nrobot: {arm: left}\n",
        "whose keys are host, robot: local needs host: local; rlinf needs the sections cluster, runner, "
        "algorithm, env, rollout, actor; verl needs the sections trainer and actor_rollout_ref; begin with a",
    ),
    "a host's address": (
        b"host: {ip: 1.2.3.4}\n",
        "no host runs this config, whose keys are host: local needs",
    ),
    "a default that is missing": (
        b"defaults: [nowhere/thing]\n",
        "mine asks for nowhere/thing, which is nowh",
    ),
}

BLOCKS = {
    "asnyc: {mode: full}": "the key asnyc is unknown; did you mean async?",
    "Async: {mode: full}": "the key Async is unknown; did you mean async?",
    "async_: {mode: full}": "the key async_ is unknown; did you mean async?",
    "async.mode: full": "the key 'async.mode' has a dot, so that it sets nothing in async; write it",
    "async.train.enabled: true": "it sets nothing in async; write it as async: {train: {enabled: ...}}",
    "actor: {optim.lr: 7}": "the key 'optim.lr' in actor has a dot, so that it sets nothing in actor.optim;",
    "runner.max_epochs: 3": "a dot, so that it sets nothing in runner; write it as runner: {max_epochs: ...}",
    "asyn: {mod: full}": "the key asyn is unknown; did you mean async?",
    "asynchronous: {mode: full}": "the key asynchronous is unknown; did you mean async?",
    "aysnc: full": "the key aysnc is unknown; did you mean async?",
    "async:\nmode: full": "the block async is empty, and the key mode stands beside it; indent mode below",
    "async:\nstreamer: {enabled: true}": "the key streamer stands beside it",
    "async: true": "async=true must be a block; use async.mode=full",
    "async: false": "async=false must be a block; use async.mode=off",
    "async: ful": "async='ful' must be a block; use async.mode=full",
    "async: [train]": "must be a block",
    "async: {survive: [env_restarts]}": "must be a block; write {env_restarts: ...} instead of the list",
    "async: {train: [enabled]}": "must be a block, true or false; write {enabled: ...} instead of the list",
    "async: {streaming: {enabled: true}}": "unknown key async.streaming; did you mean async.streamer?",
    "async: {mode: null}": "async.mode=null must be one of off, lean, train, rollout, streamer, full",
    "async: {mode: '${oc.env:NOT_SET}'}": "the config asks in async.mode for the variable NOT_SET,",
    "runner: {max_epochs: '${oc.env:NOT_SET}'}": "asks in runner.max_epochs for the variable NOT_SET",
}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("EMBODIED_PATH", "REPO_PATH", "NOT_SET"):
        monkeypatch.delenv(name, raising=False)


def invoke(command: str, folder: Path, *words: str, name: str = "mine"):
    return CliRunner().invoke(cli.app, [command, "--config-dir", str(folder), "-n", name, *words])


def refusal(command: str, folder: Path, *words: str) -> str:
    result = invoke(command, folder, *words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert len(result.output.splitlines()) == 1, result.output
    return result.output


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_a_broken_file_is_named_with_its_line(kind: str, tmp_path: Path) -> None:
    content, words = WRONG_FILES[kind]
    (tmp_path / "mine.yaml").write_bytes(BASE.encode() + content)
    text = refusal("explain", tmp_path)
    assert words in text
    if "interpolation" not in kind:
        assert str(tmp_path / "mine.yaml") in text


@pytest.mark.parametrize("kind", WHOLE_FILES)
def test_a_file_that_is_no_config_is_named(kind: str, tmp_path: Path) -> None:
    content, words = WHOLE_FILES[kind]
    (tmp_path / "mine.yaml").write_bytes(content)
    assert words in refusal("explain", tmp_path)


@pytest.mark.parametrize("kind", ["a key twice", "Latin-1", "aliases that multiply", "tab"])
def test_a_broken_file_that_the_config_asks_for_is_named_too(kind: str, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "one.yaml").write_bytes(b"# a comment\n" + WRONG_FILES[kind][0])
    (tmp_path / "mine.yaml").write_text("defaults: [/metaworld_ppo_mlp, part: one, _self_]\n")
    text = refusal("explain", tmp_path)
    assert WRONG_FILES[kind][1] in text
    assert str(tmp_path / "part" / "one.yaml") in text


def test_a_broken_file_that_nothing_asks_for_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_bytes(BOMB.encode())
    (tmp_path / "mine.yaml").write_bytes(codecs.BOM_UTF8 + BASE.encode())
    assert invoke("explain", tmp_path, "--json").exit_code == 0


@pytest.mark.parametrize("name", ["folder", "loop"])
def test_what_is_no_file_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.mkdir() if name == "folder" else path.symlink_to(path)
    assert f"{path} cannot be read" in refusal("explain", tmp_path)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("command", ["explain", "train"])
def test_a_block_that_is_none_is_refused_with_what_to_write(command: str, block: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{BASE}{block}\n")
    assert BLOCKS[block] in refusal(command, tmp_path)


def test_a_block_may_be_one_that_another_file_of_the_config_has(tmp_path: Path) -> None:
    (tmp_path / "blocks.yaml").write_text("mine: {mode: train}\n")
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach, blocks, _self_]\nasync: ${mine}\n")
    result = invoke("explain", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["levels"] == {"train": True, "rollout": False, "streamer": False}


@pytest.mark.parametrize("base", [BASE, "defaults: [local/point_reach, _self_]\n"], ids=["rlinf", "local"])
def test_a_value_that_is_still_to_be_given_is_asked_for(base: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(base)
    key = "actor.optim.lr" if base == BASE else "settings.lr"
    assert f"{key}=??? has no value; set it to a finite number" in refusal("explain", tmp_path, f"{key}=???")


def test_an_override_of_a_key_in_a_list_is_answered_in_words(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{BASE}many: [1]\n")
    assert "many.first=1 sets a key of a list, which has none" in refusal("explain", tmp_path, "many.first=1")
    for nameless in ("=3", "=full"):
        assert "has no key before its =" in refusal("explain", tmp_path, nameless)


@pytest.mark.parametrize("block", ["async: true", "async: ful"])
def test_what_a_block_that_is_none_is_told_to_be_is_accepted(block: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{BASE}{block}\n")
    remedy = refusal("explain", tmp_path).split()[-1]
    result = invoke("explain", tmp_path, remedy)
    assert result.exit_code == 0, result.output


@given(
    st.sampled_from(sorted({"runner", "env", "weight_syncer", "sync", "data", "reward", "critic", "hydra"}))
)
def test_keys_of_frameworks_are_not_taken_for_the_block(name: str) -> None:
    assert misplaced({name: {"mode": "full"}, "rollout": {"enabled": True}, "mode": "full"}) is None


@given(st.integers(0, 4), st.sampled_from(MODE_PRESETS))
def test_any_two_letters_of_the_name_that_change_places_are_noticed(place: int, mode: str) -> None:
    letters = list("async")
    other = (place + 1) % 5
    letters[place], letters[other] = letters[other], letters[place]
    assert "did you mean async?" in str(misplaced({"".join(letters): {"mode": mode}}))


def test_a_script_of_rlinf_is_asked_to_stop_for_a_misspelt_block_and_left_alone_without() -> None:
    config = {"cluster": {}, "actor": {"model": {"model_type": "mlp_policy"}}, "env": {}}
    assert not doorway.asks(OmegaConf.create(config).cluster)
    assert doorway.asks(OmegaConf.create({**config, "asnyc": {"mode": "full"}}).cluster)
    assert doorway.asks(OmegaConf.create({**config, "async": None, "mode": "full"}).cluster)


def test_errors_are_those_of_pythons_loader_also_if_the_checks_are_first_imported_while_hydra_composes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    python = yaml.SafeLoader
    monkeypatch.setattr(yaml, "SafeLoader", FAST_YAML_LOADER)
    monkeypatch.delitem(sys.modules, config_files.__name__)
    assert importlib.import_module(config_files.__name__).PYTHON_LOADER is python is not FAST_YAML_LOADER


def test_a_merge_key_may_stand_twice(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("a: &a {x: 1}\nb: &b {y: 2}\nc:\n  <<: *a\n  <<: *b\n")
    config_files.check_file(path)


def test_the_configs_of_rlinf_find_their_folder_by_where_they_are() -> None:
    root = configs("rlinf-v0.3")
    folder = root / EMBODIED / "config"
    result = invoke("explain", folder, name="libero_object_ppo_openpi_pi05")
    assert result.exit_code == 0, result.output
    assert os.environ["EMBODIED_PATH"] == str(folder.parent)
    assert os.environ["REPO_PATH"] == str(root)


def test_any_other_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(f"{BASE}hydra: {{searchpath: ['file://${{oc.env:NOT_SET}}']}}\n")
    assert "the variable NOT_SET, which is not set: export NOT_SET=..." in refusal("explain", tmp_path)


def test_a_config_without_a_block_is_told_so_and_shown_what_one_would_do(tmp_path: Path) -> None:
    """Plain data keep the two apart; what nobody would run says why."""
    (tmp_path / "mine.yaml").write_text(BASE)

    def explained(*words: str) -> str:
        return " ".join(invoke("explain", tmp_path, *words).output.split())

    shown = explained("~async")
    assert "has no async block" in shown
    assert "+async.mode=full here, it would do this: " in shown
    assert "train, rollout, streamer" in shown
    facts, full = (json.loads(explained(words, "--json")) for words in ("~async", "async.mode=full"))
    assert not any(facts["levels"].values())
    assert facts.pop("with_mode_full") == full
    wrong = explained("~async", "actor.global_batch_size=100")
    assert "it would be refused: " in wrong
    assert "nearest: 160" in wrong


@pytest.mark.parametrize("command", ["explain", "train"])
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["-m"], "rlinf-async sweep CONFIG --vary KEY=A,B"),
        (["--multirun"], "rlinf-async sweep CONFIG --vary KEY=A,B"),
        (["actor.seed=1,2"], "rlinf-async sweep CONFIG --vary actor.seed=1,2"),
        (["async=full,train"], "rlinf-async sweep CONFIG --modes full,train"),
        (["actor.seed=range(1,3)"], "rlinf-async sweep CONFIG --vary actor.seed=A,B"),
    ],
)
def test_several_values_are_sent_to_sweep(
    command: str, words: list[str], remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(BASE)
    assert remedy in refusal(command, tmp_path, *words)


def test_a_preset_that_is_none_is_told_which_one_is_meant(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(BASE)
    assert "async=true names no preset; use async.mode=full" in refusal("explain", tmp_path, "async=true")
    assert "async=false names no preset; use async.mode=off" in refusal("explain", tmp_path, "async=false")


@pytest.mark.parametrize("config", ["metaworld_ppo_mlp", "local/point_reach"])
def test_explain_loads_no_compiler_and_no_worker_classes(config: str) -> None:
    """Torch's compiler and RLinf's list of models are most of what imports can cost."""
    code = (
        "import sys\nfrom rlinf_async.cli import app\n"
        f"try:\n    app(['explain', {config!r}, '--json'])\n"
        "except SystemExit as ended:\n    assert not ended.code\n"
        "heavy = {'torch._dynamo', 'sympy', 'rlinf.workers', 'verl', 'transformers'} & set(sys.modules)\n"
        "print(heavy or 'nothing')\n"
    )
    assert printed(code, ground="import torch, omegaconf, hydra").splitlines()[-1] == "nothing"


@pytest.mark.parametrize("words", [["status"], ["report"], ["trace"], ["explain", "--config-dir"]])
def test_a_path_that_cannot_be_looked_at_is_named(words: list[str]) -> None:
    result = CliRunner().invoke(
        cli.app, [*words, "x" * 5000, *(["-n", "mine"] if "explain" in words else [])]
    )
    assert result.exit_code == 2, result.output
    assert "File name too long" in result.output
    assert len(result.output) < 300


def test_a_block_that_no_defaults_list_has_chosen_cannot_be_taken_out_and_off_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach]\n")
    assert "~async takes nothing out; use async.mode=off" in refusal("explain", tmp_path, "~async")
    assert invoke("explain", tmp_path, "async.mode=off").exit_code == 0


@pytest.mark.parametrize("name", ["''", "' '"])
def test_a_run_directory_without_a_name_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach]\n")
    assert "run_dir is empty; name a folder" in refusal("explain", tmp_path, f"run_dir={name}")


def test_a_block_by_override_adds_no_key_and_the_remedy_replaces_the_block(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach]\nmine: {'a,b': 1}\nmany: [1]\n")
    said = refusal("explain", tmp_path, "mine={a:2}")
    assert "mine has no a, and an override adds no key to a block" in said
    remedy = said.rpartition("to replace the block: ")[2].strip()
    assert remedy == "~mine '+mine={a:2}'"
    assert invoke("explain", tmp_path, "~mine", "+mine={a:2}").exit_code == 0
    assert "many={a:1} does not fit many, which has a value of another" in refusal(
        "explain", tmp_path, "many={a:1}"
    )
    assert "has run_dir already; write run_dir=... without the +" in refusal(
        "explain", tmp_path, "+run_dir=x"
    )
    assert "the config has no settings.bathces; did you mean" in refusal(
        "explain", tmp_path, "settings.bathces=3"
    )


def test_an_override_in_a_block_that_is_another_value_names_a_way_out_that_runs(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach]\nmine: {a: 1}\nother: ${mine}\n")
    assert "its other is ${mine}; set mine.a, or write other out" in refusal("explain", tmp_path, "other.a=2")
    assert invoke("explain", tmp_path, "mine.a=2").exit_code == 0
    for value in ("null", "3", "${settings}"):
        said = refusal("explain", tmp_path, f"mine={value}", "mine.a=2")
        assert f"mine={value} leaves no mine.a to be set; leave out one of the two" in said


def test_a_value_of_hydras_and_a_key_below_a_value_are_named_with_their_readers(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "defaults: [local/point_reach]\nmine: {a: 1}\nreader: ${mine.a}\nown: ${hydra:runtime.cwd}\n"
    )
    assert "own asks for a value that only Hydra's own scripts have" in refusal(
        "explain", tmp_path, "mine.a=2"
    )
    assert "mine.a=??? has no value, and another key needs it; set mine.a=..." in refusal(
        "explain", tmp_path, "mine.a=???", "own=2"
    )
    assert "mine must be a block of keys: reader reads its a" in refusal(
        "explain", tmp_path, "mine=3", "own=2"
    )


def test_the_key_that_is_written_is_named_and_not_one_that_reads_it(tmp_path: Path) -> None:
    """Else the remedy would be set for the reader, and the next answer would name the same value again."""
    (tmp_path / "mine.yaml").write_text(
        "defaults: [local/point_reach]\nsettings: {lr: 0.001}\na: ${z}\nz: 1\n"
    )
    for value, words in {
        "${hydra:job.name}": "z asks for a value that only Hydra's own scripts have; write it out, as in z=",
        "${mine:3}": "z asks for the resolver mine, which is not registered here; write the value, as in",
        "${nowhere.b}": "z reads nowhere.b, which the config does not have; add it, or write a value for z",
    }.items():
        assert words in refusal("explain", tmp_path, f"z='{value}'")


def test_a_config_is_found_with_its_suffix_and_with_the_folder_that_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach]\n")
    for name in ("mine.yaml", "./mine"):
        assert invoke("explain", tmp_path, name=name).exit_code == 0
    place = str(tmp_path / "mine")
    ended = CliRunner().invoke(cli.app, ["explain", place])
    assert f"{place} is no config; write its suffix, too: {place}.yaml" in ended.output


def test_a_file_with_the_other_suffix_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("defaults: [local/point_reach]\n")
    assert f"rename {tmp_path / 'mine.yml'} to mine.yaml" in refusal("explain", tmp_path)


def test_a_default_beside_the_config_that_is_elsewhere_needs_a_slash(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    config = tmp_path / "in" / "mine.yaml"
    for name, status in {"local/point_reach": 2, "/local/point_reach": 0}.items():
        config.write_text(f"# @package _global_\ndefaults: [{name}]\n")
        ended = invoke("explain", tmp_path, name="in/mine")
        assert ended.exit_code == status, ended.output
        assert ("write /local/point_reach in its defaults" in ended.output) is bool(status)


def test_a_path_with_a_tilde_is_answered_with_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [local/point_reach]\n")
    assert "'run_dir=~/x' cannot be read; write the path without ~" in refusal(
        "explain", tmp_path, "run_dir=~/x"
    )
