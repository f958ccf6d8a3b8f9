import re
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from rlinf_async import configs
from rlinf_async.core.config_keys import dotted
from rlinf_async.lab.report import redact
from rlinf_async.lab.report.run_files import RunFiles
from tests.lab.report.making import CONFIG, write_run

names = st.text(string.ascii_letters + string.digits + "_-", min_size=3, max_size=9).map(
    lambda name: f"q{name}"
)
paths = st.lists(names, min_size=2, max_size=5)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("/data/alice/models/pi0", ".../pi0"),
        ("/data/my models/pi0", ".../pi0"),
        ("~/models/pi0.pt", ".../pi0.pt"),
        ("~alice/models/pi0.pt", ".../pi0.pt"),
        ("/home/alice", "hidden"),
        ("/Users/alice/", "hidden"),
        ("home/alice", "hidden"),
        ("-I/home/alice/include", ".../include"),
        ("C:\\Users\\alice\\run", ".../run"),
        ("C:/Users/alice", "hidden"),
        ("\\\\server\\share\\run", ".../run"),
        ("//server/share/run", ".../run"),
        ("file:///home/alice/run", "hidden"),
        ("https://alice:pw@host.example:80/x/model", "hidden"),
        ("no file /a/b/c.txt, nor /d/e: give up", "hidden"),
        ("'/a/b' and (/c/d)", "hidden"),
        ("PATH=/a/b:/c/d", ".../d"),
        ("ray at 10.0.0.7:6379", "hidden"),
        ("--token: 'abc'", "hidden"),
        ("/.", "hidden"),
        ("/", "hidden"),
        ('password="a b" c', "hidden"),
    ],
)
def test_paths_and_what_is_no_plain_word_are_cut_out_of_texts(said, shown):
    assert redact.plain(said, key="model_path") == shown
    assert redact.plain(shown, key="model_path") == shown


@pytest.mark.parametrize(
    "said",
    ["env/success_once", "1 / 36", "token-mean", "a/b", "async.mode=full", "../x", "RUN/video", "2.13.0+cpu"],
)
def test_what_is_no_secret_stays(said):
    assert redact.plain(said, key="model_path") == said


@pytest.mark.parametrize(
    "key", ["token", "HF_TOKEN", "api_key", "Secret", "password", "credentials", "username", "robot_ip", "x"]
)
@pytest.mark.parametrize("value", ["abc", 12345, ["abc"], {"deep": "abc"}])
def test_texts_and_long_numbers_of_unknown_keys_are_hidden(key, value):
    shown = redact.plain({"a": [{key: value}]})["a"][0]
    assert key in shown
    assert not {"abc", "12345"} & set(re.findall(r"\w+", str(shown)))
    assert redact.plain({key: None}) == {key: None}


def test_short_numbers_are_no_secret():
    config = {"max_new_tokens": 7, "pad_token_id": 0, "tokens": "abc", "x": [0.5, True, 9999]}
    assert redact.plain(config) == {**config, "tokens": "hidden"}


def test_what_the_packaged_configs_set_is_shown():
    pairs = []
    for path in sorted(Path(configs.__path__[0]).rglob("*.yaml")):
        config = {name: tree for name, tree in yaml.safe_load(path.read_text()).items() if name != "defaults"}
        shown = dotted(redact.plain(config))
        pairs += [
            (key, shown[key]) for key, value in dotted(config).items() if not re.search(r"[$?]", str(value))
        ]
    hidden = {key.split(".")[-1] for key, value in pairs if value == "hidden"}
    assert len(pairs) > 300
    assert hidden <= {"name", "queue_name", "camera_names", "host"}


@given(
    paths,
    st.sampled_from(["/", "~/", "C:\\", "\\\\", "//", "file:///", "s3://"]),
    st.text(max_size=12),
    names,
)
def test_no_directory_of_an_absolute_path_survives(parts, start, before, word):
    path = start + ("\\" if "\\" in start else "/").join(parts)
    for said in (path, f"{before} {path}", f"{before}='{path}' {word}", f"({path})"):
        shown = redact.plain({"model_path": [said]})["model_path"][0]
        assert not any(f"{part}/" in shown or f"{part}\\" in shown for part in parts), shown
        assert path not in shown


@given(
    names,
    st.sampled_from(["token", "my_key", "SECRET", "db-password", "credential"]) | st.text(max_size=9),
    st.sampled_from("=:"),
)
def test_no_secret_survives_under_a_key_that_is_not_known(secret, key, sign):
    assume(not redact.KNOWN_KEYS.fullmatch(key) and secret not in key)
    tree = {"said": f"it failed with {key}{sign} {secret}", key: secret, "deep": [{key: [secret]}]}
    assert secret not in str(redact.plain(tree))


def test_a_run_directory_is_called_run_in_its_own_config(tmp_path):
    config = {
        **CONFIG,
        "video": {"base_dir": "/data/alice/runs/mine/video", "other_dir": ["/data/alice/runs/minefield"]},
    }
    shown = redact.run(RunFiles.read(write_run(tmp_path, config=config)))
    assert shown.config["runner"]["logger"]["log_path"] == "RUN"
    assert shown.config["video"] == {"base_dir": "RUN/video", "other_dir": [".../minefield"]}
    assert "alice" not in str((shown.config, shown.facts, shown.missing, shown.name))
