import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.observe.secrets import is_secret, said_without_secrets, without_secrets, yaml_without_secrets

SECRET = "s3cr3t-Value.x"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "from-the-environment")


SECRETS = """
token HF_TOKEN hf-token accessToken password db_passwd DB_PWD client_secret secrets api_key apiKey apikey
pass pwd dsn smtp_pass slack_webhook_url OPENAI_KEY sentry_dsn
pw pgpassword dbpassword mysqlpwd auth connection_string connectionString passcode sas azure_sas signature
session session_id sig user_pw dbpass jwt basic_auth x-amz-signature storage_conn_str MyPassword2
client_credentials
WANDB_API_KEY wandb_key aws_secret_access_key private-key credentials Authorization cookie ssh_key
"""
NONE = """
max_new_tokens tokenizer tokenizer_path pad_token eos-token pad_token_id policy_key keyboard key author
wrist_camera_key answer_key unnorm_key authors bypass compass power sigma assets
session_name pwm significance width_pw_ratio design loss_token_mean num_image_token_slots PWD
"""


@pytest.mark.parametrize("key", SECRETS.split())
@pytest.mark.parametrize("value", [SECRET, [SECRET], {"a": {"b": [SECRET]}}, [{"x": SECRET}], 31337])
def test_what_stands_under_a_secret_key_is_hidden_however_deep(key, value):
    shown = without_secrets({"runner": {"loggers": [{key: value, "name": "run-7"}]}})
    assert SECRET not in str(shown)
    assert "31337" not in str(shown)
    assert shown["runner"]["loggers"][0]["name"] == "run-7"


@pytest.mark.parametrize("key", NONE.split())
def test_words_that_only_sound_like_it_stay(key):
    assert not is_secret(key)
    assert without_secrets({key: "value"}) == {key: "value"}


@pytest.mark.parametrize(
    "said",
    [
        f"cannot clone https://alice:{SECRET}@host.example:8080/repo.git",
        f"git+https://alice:p@{SECRET}@host.example/repo",
        f"postgres://alice:p/{SECRET}@host.example/db",
        f"redis://:{SECRET}@10.0.0.7:6379/0 is not there",
        f"GET https://host/x?page=2&token={SECRET}&size=3 gave 403",
        f"{{'password': '{SECRET}', 'user': 'a'}}",
        f'{{"api_key": "{SECRET} with spaces"}}',
        f"HF_TOKEN={SECRET} python train.py",
        f"train.py --api-key {SECRET} --steps 3",
        f"train.py --password={SECRET}",
        f"runner.logger.wandb_key={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}==",
        f"no such user\npassword: {SECRET}\nhost: x",
        f"GET https://x.blob.core.windows.net/c/b?sv=2022&sig={SECRET} gave 403",
        f"https://s3.example/b?X-Amz-Signature={SECRET}&X-Amz-Date=20260101T000000Z",
        f"https://x.example/cb#access_token={SECRET}",
        f"https://x.example/?unheard_of={SECRET}",
        f"proxy wants Basic {SECRET}==",
        f"cannot log in with password {SECRET}",
        f"the password is {SECRET}",
        f"psql: pgpassword={SECRET}",
        f"bad connection_string='Server=x;Uid=y;Pwd={SECRET};'",
        f"connect --pw {SECRET} --steps 3",
    ],
)
def test_secrets_are_taken_out_of_errors_command_lines_and_urls(said):
    shown = said_without_secrets(said)
    assert SECRET not in shown
    assert "with spaces" not in shown
    assert "hidden" in shown
    assert shown.split()[0].split(":")[0] == said.split()[0].split(":")[0].replace(SECRET, "hidden")


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "aB3" * 11,
        "ghp_" + "x1" * 18,
        "glpat-" + "x1" * 10,
        "sk-proj-" + "Zz9" * 10,
        "AKIA" + "Q7" * 8,
        "eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "from-the-environment",
        "nvapi-" + "x1" * 20,
        "AIza" + "x1" * 17,
        "npm_" + "x1" * 18,
        "dop_v1_" + "a1b2c3d4" * 8,
        "shpat_" + "a1b2c3d4" * 4,
        "aB3xY9" * 6 + "==",
        "r8_" + "x1" * 18,
        "SG." + "x1" * 11 + "." + "x1" * 20,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_known_forms_and_values_of_the_environment_are_hidden_wherever_they_stand(secret):
    assert without_secrets({"note": [f"with {secret} in it"]}) == {"note": ["with hidden in it"]}


def test_what_is_no_secret_stays_as_it_is():
    config = {
        "runner": {"logger": {"log_path": "/data/runs/a b", "experiment_name": "full-1"}, "max_epochs": 3},
        "actor": {"model": {"model_path": "https://huggingface.co/org/model", "pad_token": "<pad>"}},
        "note": "the basic idea: reward = 1 - distance; see https://x.org/a@b?size=3",
        "data": [None, True, 1e-5, "???", "${oc.env:HOME}"],
        "said": [
            "the password is wrong",
            "password authentication failed",
            "basic training of a policy",
            "Basic usage:",
        ],
        "commit": "2f8e0c5d9b7a6e4f3c1d0b9a8f7e6d5c4b3a2910",
        "models": [
            "RLinf/RLinf-OpenVLAOFT-LIBERO-90-Base-Lora",
            "Qwen/Qwen2.5-VL-3B-Instruct",
            "openvla_oft_libero_10_traj1",
        ],
        "class": "Qwen25VLForConditionalGeneration2",
        "task": "PandaPutOnPlateInScene25DigitalTwin-v1",
        "paths": [
            "/data/global_step_100/actor",
            "runs/2026-11-28_metaworld50_seed7",
            "s3://bucket/a/b?versions=2",
        ],
    }
    assert without_secrets(config) == config


def test_a_document_without_secrets_stays_to_the_letter_and_one_with_them_can_be_read():
    text = "b:   1e-5   # a comment\na: {x: 1}\n"
    assert yaml_without_secrets(text) == text
    shown = yaml_without_secrets(f"a: {{lr: 1.0e-05, token: {SECRET}, user: null}}\nb: [2, x]\n")
    assert yaml.safe_load(shown) == {"a": {"lr": 1e-5, "token": "hidden", "user": None}, "b": [2, "x"]}


@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(), st.lists))
def test_numbers_are_not_touched(tree):
    assert without_secrets({"steps": tree}) == {"steps": tree}


@pytest.mark.parametrize("name", ["PGPASSWORD", "OPENAI_KEY", "SSHPASS", "SOMETHING_NEW", "RAY_AUTH_TOKEN"])
def test_a_value_of_the_environment_is_hidden_unless_it_is_allowed(monkeypatch, name):
    monkeypatch.setenv(name, "hunter2-Value9")
    assert without_secrets({"x": "hunter2-Value9", "y": "a hunter2-Value9 b"}) == {
        "x": "hidden",
        "y": "a hidden b",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
        ("MY_TASK", "metaworld"),
        ("DATA", "/data/runs"),
        ("PWD", "/a/b-c.d"),
    ],
)
def test_what_is_allowed_of_the_environment_stays(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert without_secrets({"x": value}) == {"x": value}


def test_no_key_that_a_host_or_a_packaged_config_knows_is_taken_for_a_secrets_but_those_that_are():
    from rlinf_async.hosts.local.config import TABLE

    keys = {row.name.rpartition(".")[2] for row in TABLE.rows}
    for path in (Path(__file__).parents[2] / "configs").rglob("*.yaml"):
        keys |= set(re.findall(r"^\s*([\w-]+):", path.read_text(), re.MULTILINE))
    assert len(keys) > 100
    assert [key for key in sorted(keys) if is_secret(key)] == []
