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
WANDB_API_KEY wandb_key aws_secret_access_key private-key credentials Authorization cookie ssh_key
"""
NONE = """
max_new_tokens tokenizer tokenizer_path pad_token eos-token pad_token_id policy_key keyboard key author
secretary unnorm_key loss_token_mean num_image_token_slots PWD
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
