"""Takes secrets out of a run's records: out of its config, and out of errors.

A run directory is read by colleagues, copied and attached to bug reports, and must stay useful for them. So,
unlike in a report (`lab/report/redact.py`), only values that are secrets by the name of their key or by their
form are hidden. Values of environment variables are hidden unless the variable has a known name, or its value
is only a number, a word or a path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import yaml

HIDDEN_MARK = "hidden"
MIN_SECRET_LENGTH = 6
"""Shorter values of environment variables are not searched for in texts: they could be words."""

_TOKENIZER_TOKENS = ("new", "pad", "bos", "eos", "unk", "cls", "sep", "mask", "image", "action")
"""Prefixes of a tokenizer's tokens, such as `pad_token`, which are no secrets."""
_UNMISTAKABLE_WORDS = r"password|passwd|passphrase|passcode|secret|credential|authorization|signature"
"""Words that mark a name as a secret's, also within a word of the name: `pgpassword`."""
_KEY_EXPRESSION = (
    rf"(?:[\w-]*(?:{_UNMISTAKABLE_WORDS})s?\d*"
    r"|(?:[\w-]*[_-])?(?:cookies?|bearer|auth|sas|sig|jwt|otp|sess(?:ion)?(?:[_-]?id)?"
    r"|(?:api|access|account|private|signing|wandb|ssh)[_-]?key|conn(?:ection)?[_-]?str(?:ing)?"
    r"|dsn|pass|webhook(?:[_-]ur[il])?"
    rf"|{''.join(f'(?<!{word}[_-])' for word in _TOKENIZER_TOKENS)}token)"
    r"|[\w-]+[_-]pwd|(?:db|pg|sql|mysql|ftp|smtp|ssh|user|root|admin)(?:pass|pwd|pw)|(?:[\w-]*[_-])?pw)"
)
"""The pattern of secrets' names. `PWD` alone is the shell's directory, and does not match."""
KEY_PATTERN = re.compile(_KEY_EXPRESSION, re.IGNORECASE)
_OF_DATA = (
    r"answer|arm|audio|camera|choice|dataset|fn|messages|model|response|solution|source|thinking|tools"
    r"|policy|unnorm|image|state|action|task|reward|obs|prompt|video|wrist|main|data|sort|group"
)
_ANY_KEY = re.compile(
    rf"(?!(?:.*[_-])?(?:{_OF_DATA})[_-]key$)[\w-]+[_-]key|pwd|.*webhook.*|dsn.*", re.IGNORECASE
)
"""Further names of settings that may be secrets, for example a key that is not a key of data."""
_VARIABLE_PATTERN = re.compile(
    r".*(?:PASS|PWD|KEY|SECRET|TOKEN|CRED|AUTH|DSN|WEBHOOK|COOKIE|SIGNATURE).*", re.IGNORECASE
)
_SHELL_DIRECTORIES = ("PWD", "OLDPWD")
_ALLOWED_PATTERN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|HOST|HOSTNAME|EDITOR|DISPLAY|TZ|LANG|LANGUAGE|VIRTUAL_ENV|EMBODIED_PATH|REPO_PATH"
    r"|(?:CUDA|NVIDIA_VISIBLE|NCCL|OMP|MKL|OPENBLAS|RAY|HYDRA|MUJOCO|PYOPENGL|PYTHON|PYTEST|TORCH|XLA|LC|XDG|CONDA|SLURM"
    r"|RLINF|VERL|TRANSFORMERS|LD|HF_HOME|HF_HUB)(?:_\w*|PATH|\w*)"
)
"""Environment variables with values that may be shown, unless their names match a secret's."""
_HARMLESS_PATTERN = re.compile(
    r"[\d.,:-]+|[A-Za-z][a-z]*(?:[_-][a-z]+)*|[A-Z_]+|(?:~|\.{0,2})/[^@:\s]*(?::/[^@:\s]*)*"
)
"""A number, a word or a path: values of unknown variables that may be shown."""
_CAMEL_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_WORDS_BEHIND_PASSWORD = (
    "is|was|for|of|must|has|have|had|not|no|file|from|and|or|in|with|to|by|at|on|as|the|a|an|that|which|will|may|can|cannot|expired"
    "|required|missing|wrong|incorrect|invalid|empty|authentication|authenticator|prompt|hash|field|changed|does|failed|needed"
)
"""Words that may follow `password` in a sentence; any other word there counts as the password."""
_HARMLESS_QUERY = re.compile(r"[a-z]{1,12}|\d{1,6}|true|false", re.IGNORECASE)

LEAST_CHANGES = 4
"""The least changes between letters and digits in a random text; a name of many words has fewer."""


def _unless_a_name(found: re.Match[str]) -> str:
    """Return the matched text, or the mark if its last part is random."""
    digits = [each.isdigit() for each in found[1]]
    return HIDDEN_MARK if sum(one != other for one, other in pairwise(digits)) >= LEAST_CHANGES else found[0]


def _unless_harmless(found: re.Match[str]) -> str:
    """Return a pair of a query, its value replaced by the mark unless it is a short word or a number."""
    name, value = found[1].removesuffix("="), found[2]
    return found[0] if _HARMLESS_QUERY.fullmatch(value) and not is_secret(name) else f"{name}={HIDDEN_MARK}"


SECRET_FORMS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # In a query or a fragment only short words and numbers stay, whatever their names.
    (
        re.compile(r"(?<=[?&#])([\w.~%-]+=)(?!hidden\b)([^&#\s\"'<>)\]}]+)"),
        _unless_harmless,
    ),
    # A user and their password, or a token, in a URL.
    # Digits up to a slash, or to the end, are a port.
    (re.compile(r"(?<=://)[^\s/:@\"']*:(?!\d+(?:/|$))[^\s\"']+(?=@)"), HIDDEN_MARK),
    (re.compile(r"(?<=://)[^\s/\"']+(?=@)"), HIDDEN_MARK),
    (re.compile(r"(?<=hooks\.slack\.com/)[\w/-]+"), HIDDEN_MARK),
    (
        re.compile(r"\b(authorization[\"']?\s*[:=]\s*[\"']?\w+\s+)[\w.~+/=-]+", re.IGNORECASE),
        rf"\1{HIDDEN_MARK}",
    ),
    (re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{HIDDEN_MARK}"),
    # Not for English words: base64 has a capital, a digit or a sign inside.
    (
        re.compile(r"\b((?i:basic|digest|negotiate)\s+)(?=[\w+/=-]+[A-Z\d+/=])[\w.~+/=-]{8,}"),
        rf"\1{HIDDEN_MARK}",
    ),
    (
        re.compile(
            rf"\b((?:[\w-]*(?:password|passwd|passphrase|passcode)|pwd|pw)\s+(?:is\s+|was\s+)?[\"'`]?)"
            rf"(?!(?:{_WORDS_BEHIND_PASSWORD})\b)[^\s\"'`,;:=)]+",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_MARK}",
    ),
    # A connection string has several pairs; one mark replaces them all.
    (
        re.compile(
            r"\b(conn(?:ection)?[_-]?str(?:ing)?[\"']?\s*[:=]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|\S+)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_MARK}",
    ),
    # `key=value`, `key: value` and `"key": "value"`, in messages, command lines and queries of URLs.
    (
        re.compile(
            rf"\b({_KEY_EXPRESSION})([\"']?\s*[:=]\s*)(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"')\]}}]+)",
            re.IGNORECASE,
        ),
        rf"\1\2{HIDDEN_MARK}",
    ),
    (re.compile(rf"(--?{_KEY_EXPRESSION}\s+)(?!-)\S+", re.IGNORECASE), rf"\1{HIDDEN_MARK}"),
    # Tokens of GitHub, GitLab, Hugging Face, OpenAI and Slack.
    (re.compile(r"\b(?:hf|gh[pousr]|github_pat|glpat|sk|pk|xox[abps])[_-][\w-]{16,}"), HIDDEN_MARK),
    # Tokens of NVIDIA, Google, npm, Replicate, SendGrid and PyPI.
    (re.compile(r"\b(?:nvapi-|AIza|npm_|r8_|SG\.|pypi-|ya29\.)[\w.-]{16,}"), HIDDEN_MARK),
    # Tokens of others, with the issuer's prefix and a random text: `dop_v1_...`.
    (re.compile(r"\b[A-Za-z]{2,12}(?:[_-][A-Za-z0-9]{1,10}){0,3}[_-]([A-Za-z0-9]{24,})\b"), _unless_a_name),
    # Not for hashes, which name versions and have small letters only.
    (re.compile(r"(?<![\w/.+-])(?=[a-z0-9+]*[A-Z])([A-Za-z0-9+]{24,}={0,2})(?![\w/.])"), _unless_a_name),
    # Keys of AWS, then JSON web tokens.
    (re.compile(r"\bA(?:KIA|SIA)[A-Z0-9]{16}\b"), HIDDEN_MARK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), HIDDEN_MARK),
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        HIDDEN_MARK,
    ),
)


def is_secret(key: str) -> bool:
    """Return True if a key of this name holds a secret."""
    name = _CAMEL_BORDER.sub("_", key)
    return key not in _SHELL_DIRECTORIES and any(
        kind.fullmatch(name) is not None for kind in (KEY_PATTERN, _ANY_KEY)
    )


def without_secrets(tree: object) -> Any:
    """Return plain data with `hidden` in place of secrets; only strings and values of secret keys change."""
    if isinstance(tree, Mapping):
        return {
            key: _hidden(value) if is_secret(str(key)) else without_secrets(value)
            for key, value in tree.items()
        }
    if isinstance(tree, list | tuple):
        return [without_secrets(value) for value in tree]
    return said_without_secrets(tree) if isinstance(tree, str) else tree


def said_without_secrets(text: str) -> str:
    """Return a text, such as an error message, with `hidden` in place of secrets."""
    for value in _of_environment():
        text = text.replace(value, HIDDEN_MARK)
    for form, instead in SECRET_FORMS:
        text = form.sub(instead, text)
    return text


def yaml_without_secrets(text: str) -> str:
    """Return a YAML document with `hidden` in place of secrets; unchanged if it has none."""
    tree = yaml.safe_load(text)
    tree_shown = without_secrets(tree)
    return text if tree_shown == tree else yaml.safe_dump(tree_shown, sort_keys=False, allow_unicode=True)


def _hidden(tree: object) -> Any:
    """Return the value of a secret key with all its values hidden; its structure stays for readers."""
    if isinstance(tree, Mapping):
        return {key: _hidden(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_hidden(value) for value in tree]
    return tree if tree is None or isinstance(tree, bool) or tree == "" else HIDDEN_MARK


def _of_environment() -> list[str]:
    """Return the values of environment variables to hide, the longest first: one may be a part of another."""
    values = {
        value
        for name, value in os.environ.items()
        if len(value) >= MIN_SECRET_LENGTH and not _may_be_shown(name, value)
    }
    return sorted(values, key=len, reverse=True)


def _may_be_shown(name: str, value: str) -> bool:
    """Return True if the value of an environment variable may be shown."""
    if name in _SHELL_DIRECTORIES:
        return True
    if is_secret(name) or _VARIABLE_PATTERN.fullmatch(name):
        return False
    return _ALLOWED_PATTERN.fullmatch(name) is not None or _HARMLESS_PATTERN.fullmatch(value) is not None
