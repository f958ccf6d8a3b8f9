import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.report import redact
from rlinf_async.report.run_files import RunFiles
from tests.report.making import CONFIG, write_run

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
        ("/home/alice", "..."),
        ("/Users/alice/", "..."),
        ("-I/home/alice/include", "-I.../include"),
        ("C:\\Users\\alice\\run", ".../run"),
        ("C:/Users/alice", "..."),
        ("\\\\server\\share\\run", ".../run"),
        ("//server/share/run", ".../run"),
        ("file:///home/alice/run", ".../run"),
        ("https://alice:pw@host.example:80/x/model", ".../model"),
        ("no file /a/b/c.txt, nor /d/e: give up", "no file .../c.txt, nor .../e: give up"),
        ("'/a/b' and (/c/d)", "'.../b' and (.../d)"),
        ("PATH=/a/b:/c/d", "PATH=.../d"),
        ("ray at 10.0.0.7:6379", "ray at hidden"),
        ("wandb api_key=abc123 failed", "wandb api_key=hidden failed"),
        ("--token: 'abc'", "--token: hidden"),
        ("pushed with hf_abcdefghijkl", "pushed with hidden"),
        ("/.", "..."),
        ("/", "..."),
        ('password="a b" c', "password=hidden c"),
        ("Bearer abc.def", "Bearer hidden"),
    ],
)
def test_paths_and_secrets_are_cut_out_of_texts(said, shown):
    assert redact.plain(said) == shown
    assert redact.plain(shown) == shown


@pytest.mark.parametrize(
    "said",
    ["env/success_once", "1 / 36", "token-mean", "a/b", "async.mode=full", "../x", "RUN/video", "2.13.0+cpu"],
)
def test_what_is_no_secret_stays(said):
    assert redact.plain(said) == said


@pytest.mark.parametrize(
    "key", ["token", "HF_TOKEN", "api_key", "Secret", "password", "credentials", "username"]
)
@pytest.mark.parametrize("value", ["abc", 12345, ["abc"], {"deep": "abc"}])
def test_secrets_are_known_by_their_keys(key, value):
    assert redact.plain({"a": [{key: value}]}) == {"a": [{key: "hidden"}]}
    assert redact.plain({key: None}) == {key: None}


def test_numbers_of_a_models_tokens_are_no_secret():
    config = {"max_new_tokens": 7, "pad_token_id": 0, "tokens": "abc"}
    assert redact.plain(config) == {"max_new_tokens": 7, "pad_token_id": 0, "tokens": "hidden"}


@given(
    paths,
    st.sampled_from(["/", "~/", "C:\\", "\\\\", "//", "file:///", "s3://"]),
    st.text(max_size=12),
    names,
)
def test_no_directory_of_an_absolute_path_survives(parts, start, before, word):
    path = start + ("\\" if "\\" in start else "/").join(parts)
    for said in (path, f"{before} {path}", f"{before}='{path}' {word}", f"({path})"):
        shown = redact.plain({"a": [said]})["a"][0]
        assert not any(f"{part}/" in shown or f"{part}\\" in shown for part in parts), shown
        assert path not in shown


@given(
    names, st.sampled_from(["token", "my_key", "SECRET", "db-password", "credential"]), st.sampled_from("=:")
)
def test_no_secret_survives(secret, key, sign):
    tree = {"said": f"it failed with {key}{sign} {secret}", key: secret, "deep": [{key: [secret]}]}
    assert secret not in str(redact.plain(tree))


def test_a_run_directory_is_called_run_in_its_own_config(tmp_path):
    config = {
        **CONFIG,
        "video": {"base_dir": "/data/alice/runs/mine/video", "others": ["/data/alice/runs/minefield"]},
    }
    shown = redact.run(RunFiles.read(write_run(tmp_path, config=config)))
    assert shown.config["runner"]["logger"]["log_path"] == "RUN"
    assert shown.config["video"] == {"base_dir": "RUN/video", "others": [".../minefield"]}
    assert "alice" not in str((shown.config, shown.facts, shown.missing, shown.name))
