"""What a value may be: what is accepted, what is near, and that what is near is accepted."""

import math
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.host import counterparts, every, load
from rlinf_async.hosts.judge import table
from rlinf_async.hosts.judge.reasons import SETTING_WORDS, read_conflicts, written
from rlinf_async.hosts.judge.table import (
    BLOCK_KIND,
    COUNT_KIND,
    FLAG_KIND,
    NUMBER_KIND,
    WHOLE_KIND,
    Key,
    Table,
    kind_of,
    read_rows,
)

KINDS = tuple(
    map(
        kind_of,
        (
            "a whole number",
            "a whole number of at least 1",
            "a whole number of at least -1",
            "a whole number from 0 to 7",
            "a finite number",
            "a finite number of at least 0",
            "a finite number above 0",
            "a number from 0 to 1",
            "a number above 0 and at most 1",
            "a finite number above 1",
            "a finite number of at least 0 and below 1",
            "a whole number above 0 and below 3",
            "a list of two, each a finite number of at least 0 and below 1",
            "a text, or a list of one or more",
            "true or false",
            "one of chunk_level, action_level",
            "one of bf16, 16",
            "one of tensorboard, wandb, or a list of them",
            "a text",
        ),
    )
)
UNSTATED_KIND = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["1", "nan", "aut"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("value", [[0.9, 1.0], [-0.1, 0.9], [0.9], [0.9, 0.99, 0.999], [], 0.9, ["0.9", 0.9]])
def test_two_numbers_below_1_are_neither_more_nor_fewer_nor_1(value):
    key = Key(name="betas", kind=kind_of("a list of two, each a finite number of at least 0 and below 1"))
    assert key.reason([0, 0.999]) is None
    assert "must be a list of two, each a finite number" in key.reason(value).text
    assert key.reason(value).override == ""


def test_a_list_of_one_or_more_is_not_empty():
    kind = kind_of("the name of a layer, or a list of one or more")
    assert [kind.accepts(value) for value in (["a"], "a", [], 7, [7])] == [True, True, False, False, False]


@given(kind=st.sampled_from(KINDS), value=UNSTATED_KIND)
def test_a_refusal_is_one_line_and_what_it_names_as_near_is_accepted(kind, value):
    reason = Key(name="a.b", kind=kind).reason(value)
    if reason is None:
        assert value is None or kind.accepts(value)
        return
    assert reason.text.startswith("a.b=")
    assert len(reason.text.splitlines()) == 1
    assert len(reason.text) < 300
    near = kind.near(value)
    assert near is None or kind.accepts(near)
    # A word that is near is a guess, and no override.
    assert reason.override == ("" if near is None or isinstance(near, str) else f"a.b={written(near)}")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, True, False, "1", "ten", None, [1], {"a": 1}]
)
@pytest.mark.parametrize("kind", [WHOLE_KIND, NUMBER_KIND, COUNT_KIND, kind_of("a number from 0 to 1")])
def test_what_is_no_number_is_no_number(kind, value):
    assert not kind.accepts(value)


@pytest.mark.parametrize(
    ("kind", "value", "near"),
    [
        (COUNT_KIND, 0, 1),
        (COUNT_KIND, 2.5, 2),
        (COUNT_KIND, 16.0, 16),
        (COUNT_KIND, "3", 3),
        (COUNT_KIND, "ten", None),
        (kind_of("a whole number from 0 to 7"), 9, 7),
        (WHOLE_KIND, 10**400, 10**400),
        (kind_of("a finite number of at least 0"), -1e-4, 0),
        (kind_of("a number from 0 to 1"), 1.5, 1),
        (kind_of("a finite number above 0"), 0, None),
        (NUMBER_KIND, math.nan, None),
        (FLAG_KIND, 1, True),
        (kind_of("one of always, standard"), "alwayss", "always"),
    ],
)
def test_the_nearest_value_is_named(kind, value, near):
    assert kind.near(value) == near
    assert type(kind.near(value)) is type(near)


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        ("a whole number of at least 1", [1, 7, 8, 16]),
        ("a whole number from 0 to 7", [0, 1, 7]),
        ("a number above 0 and at most 1", [0.5, 1]),
        ("a finite number of at most 1", [-1, 0, 0.5, 1]),
        ("a finite number above 7", [8, 16]),
        ("one of bf16, 16", [16, "16", "bf16"]),
        ("one of True, 16", [16, "16"]),
        ("one of bf16, 16, or a list of them", [16, "16", "bf16", ["bf16"], []]),
        ("true or false", [True]),
        ("a block of keys", [{"a": 1}]),
        ("the folder for the run's records", ["16", "bf16", "wandb"]),
    ],
)
def test_the_words_of_a_kind_say_what_it_accepts(words, accepted):
    values = (True, -1, 0, 0.5, 1, 1.5, 7, 8, 16, "16", "bf16", "wandb", [1], ["bf16"], [], {"a": 1})
    found = [value for value in values if kind_of(words).accepts(value)]
    # By type, too: True is 1 to Python.
    assert list(map(repr, found)) == list(map(repr, accepted))
    assert kind_of(words).words == words


@pytest.mark.parametrize("words", ["a number of atleast 1", "a whole number from 0 until 7"])
def test_words_of_a_number_that_are_none_are_refused(words):
    with pytest.raises(ValueError, match="must be the description of a number"):
        kind_of(words)


@pytest.fixture
def read(tmp_path):
    """The rows and the defaults of a text."""

    def read(text, more=None):
        (tmp_path / "keys.toml").write_text(text)
        return read_rows(tmp_path / "keys.toml", more or {})

    return read


def test_rows_are_read_from_a_text_with_what_null_is(read):
    found, _ = read("""
[served]
"a whole number of at least 1 (needed)" = "a.size"
"true or false (or null)" = '''
    b.c: d e
    g
'''
"a finite number (null is -1)" = "f"
""")
    assert [(row.name, row.kind, row.required, row.nullable, row.null) for row in found] == [
        ("a.size", COUNT_KIND, True, False, None),
        ("b.c.d", FLAG_KIND, False, True, None),
        ("b.c.e", FLAG_KIND, False, True, None),
        ("g", FLAG_KIND, False, True, None),
        ("f", NUMBER_KIND, False, True, -1),
    ]


def test_each_table_of_a_text_has_a_fate_and_the_reason_of_it(read):
    found, defaults = read(
        """
[changed]
"true or false: it: waits" = "a.offload"
["without effect"]
"there is none: it counts" = "b.*"
[open]
"anything" = "c*"
[defaults]
a.size = 0.5
a.mode = "x"
""",
        {"without effect": {"serves": lambda value: value == "d"}, "c*": {"null": 3}},
    )
    assert [(row.name, row.kind.words, row.fate, row.why, row.null) for row in found] == [
        ("a.offload", "true or false", "changed", "it: waits", None),
        ("b.*", "anything", "without effect", "there is none: it counts", None),
        ("c*", "anything", "served", "", 3),
    ]
    assert [found[1].allows(value) for value in ("d", None, 1)] == [True, False, False]
    assert defaults == {"a.size": 0.5, "a.mode": "x"}


def test_a_setting_that_alone_is_served_is_the_remedy_of_every_other(read):
    found, _ = read("""
[refused]
"a.b=false" = "it is so"
"a.c=1" = "one: is enough"
"~a.d (a block of keys)" = "nothing does it"
""")
    assert [row.fate for row in found] == ["refused"] * 3
    assert found[2].kind == BLOCK_KIND
    assert [(row.name, row.override, row.remedy) for row in found] == [
        ("a.b", "a.b=false", "set it to false: it is so"),
        ("a.c", "a.c=1", "set it to 1: one: is enough"),
        ("a.d", "~a.d", "remove it: nothing does it"),
    ]
    served = [
        [value for value in (None, False, True, 0, 1, 2, {}, {"e": 1}) if row.allows(value)] for row in found
    ]
    # What is none of a key's kind is told by other words.
    assert served == [
        [None, False, 0, 1, 2, {}, {"e": 1}],
        [None, False, True, 1, {}, {"e": 1}],
        [None, False, True, 0, 1, 2, {}],
    ]


def test_a_default_tells_the_kind_of_a_key_without_a_row_unless_it_follows_another():
    free = Key(name="a.free", kind=kind_of("anything at all"))
    table = Table([free], default_of={"a.b": 0.5, "a.free": 1}.get)
    assert [reason.text for reason in table.reasons({"a": {"b": "ten", "free": "ten"}})] == [
        "a.b='ten' must be a finite number"
    ]
    assert [reason.text for reason in table.reasons({"a": {"b": None}})] == [
        "a.b=null must be a finite number; the default is 0.5"
    ]
    assert table.reasons({"a": {"b": "ten"}}, usual={"a.b": "ten"}) == []


def test_the_row_of_a_key_is_its_own_before_a_pattern_and_a_refused_block_has_all_that_is_in_it():
    table = Table(
        (
            Key(name="a.*", fate="unread"),
            Key(name="a.size", kind=COUNT_KIND),
            Key(name="a.block", fate="refused"),
        )
    )
    assert table.find("a.size").fate == "served"
    assert table.find("a.block.inner").fate == "refused"
    assert table.find("a.other").fate == "unread"
    assert table.find("b") is None
    assert table.unknown({"a": {"size": 1}, "b": {"c": 3, "d": None}}) == {"b.c": 3}


def test_a_section_that_is_none_is_named_before_what_would_be_in_it():
    table = Table((Key(name="a.b.c", kind=COUNT_KIND, required=True),))
    assert [reason.text for reason in table.reasons({"a": 3})] == ["a=3 must be a block of keys"]
    assert [reason.text for reason in table.reasons({"a": {"b": [1]}})] == ["a.b=[1] must be a block of keys"]
    assert [reason.text for reason in table.reasons({})] == [
        "a.b.c is missing; set it to a whole number of at least 1"
    ]
    assert table.reasons({}, complete=False) == []


def test_a_list_is_one_word_of_an_override():
    assert written(["model", "optimizer", None]) == "[model,optimizer,null]"


def test_a_key_of_one_host_leads_to_the_keys_of_the_same_setting_of_every_other():
    assert set(counterparts("settings.global_batch_size")) == {
        "actor.global_batch_size",
        "actor_rollout_ref.actor.ppo_mini_batch_size",
    }
    assert counterparts("settings.total_envs")[0] == "env.train.total_num_envs"
    assert counterparts("hparams.total_envs") == []
    named = {setting: [host for host in every() if setting in host.setting_keys] for setting in settings()}
    assert not [setting for setting, hosts in named.items() if len(hosts) < 2], "named by one host alone"


@pytest.mark.parametrize("host", ["local", "rlinf", "verl"])
def test_the_first_key_of_a_setting_has_a_row_in_its_hosts_table(host):
    from tests.hosts.test_any_overrides import table_of

    first = {keys.split()[0] for keys in load(host).setting_keys.values()}
    assert first <= {row.name for row in table_of(host).rows} | {"vla.model.model_path"}


def settings():
    return {setting for host in every() for setting in host.setting_keys}


@pytest.mark.parametrize("value", [1e300, 1e38, 10**40, "1e300"])
def test_a_number_beyond_float32_is_refused_for_its_size(value):
    reason = Key(name="a.lr", kind=kind_of("a finite number above 0")).reason(value)
    assert reason.text.startswith("a.lr=")
    assert reason.text.endswith("must be a finite number above 0; it is too large")


def test_a_list_is_no_block():
    kind = kind_of("a list")
    assert [kind.accepts(value) for value in ([], [{"a": 1}], {"a": 1}, "ab")] == [True, True, False, False]


@pytest.fixture
def conflicting(tmp_path):
    """Returns the words and the remedy of the one conflict of a text in a config; None without a conflict."""

    def conflicting(row, cfg, asynchrony=None):
        (tmp_path / "keys.toml").write_text(f"[conflicts]\n{row}\n")
        conflicts = read_conflicts(tmp_path / "keys.toml", {"GROUPED": ("rloo", "grpo")})
        reasons = Table([], conflicts=conflicts).conflict_reasons(cfg, asynchrony)
        return next(((each.text, each.override) for each in reasons), None)

    return conflicting


@pytest.mark.parametrize(
    ("setting", "held", "others"),
    [
        ("a.b", (True, 2, "x", [1]), (None, False, 0, "", [])),
        ("a.b=x|null", ("x", None), ("y", False)),
        ("a.b=false", (False,), (None, 0, True)),
        ("a.b=GROUPED", ("grpo", "rloo"), ("GROUPED", "gae", None)),
        ("a.b<2", (1, None, -1), (2, 3)),
        ("a.b>0", (1, 7), (0, -1, None)),
    ],
)
def test_a_setting_of_a_conflict_holds_for_these_values_and_no_others(conflicting, setting, held, others):
    row = f'"{setting}" = "it cannot be; use a.b=5"'
    found = {str(value): conflicting(row, {"a": {"b": value}}) for value in (*held, *others)}
    assert {value for value, reason in found.items() if reason} == set(map(str, held))


def test_a_conflict_names_its_settings_but_not_their_limits_and_then_the_remedy(conflicting):
    row = '"async a.b=x a.c=null ~a.d a.e!=GROUPED" = "b needs: it; use a.c=1"'
    cfg = {"a": {"b": "x", "d": 0, "e": "gae"}}
    said = "a.b=x with no a.c: b needs: it; use a.c=1"
    assert conflicting(row, cfg, AsyncConfig()) == (said, "a.c=1")
    assert conflicting(row, cfg) is None
    for change in ({"d": 1}, {"e": "grpo"}, {"c": 0}):
        assert conflicting(row, {"a": {**cfg["a"], **change}}, AsyncConfig()) is None


@pytest.mark.parametrize("host", ["rlinf", "verl"])
def test_every_conflict_is_of_known_keys_with_a_remedy(host):
    file = Path(table.__file__).parents[1] / host / "keys.toml"
    rows, _ = read_rows(file)
    names = {row.name for row in rows}
    for heading, text in tomllib.loads(file.read_text())["conflicts"].items():
        assert all(SETTING_WORDS.fullmatch(setting) for setting in heading.split())
        assert re.search(r"\w; use '?\+{0,2}[\w.]+=[^;]+$", text)
        keys = {key for _, key, _, _ in SETTING_WORDS.findall(heading)}
        assert {key for key in keys if not key.startswith("async")} <= names
