"""What a value may be: what is accepted, what is near, and that what is near is accepted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.hosts.host import every, load
from rlinf_async.hosts.judge.keys import Key, Table, counterparts, refused, rows
from rlinf_async.hosts.judge.kinds import (
    FREE,
    Block,
    Flag,
    Kind,
    Listed,
    Names,
    Real,
    Text,
    Whole,
    kind_of,
    written,
)

KINDS = (
    Whole(),
    Whole(1),
    Whole(-1),
    Whole(0, 7),
    Real(),
    Real(least=0),
    Real(above=0),
    Real(least=0, most=1),
    Real(above=0, most=1),
    Real(above=1),
    Flag(),
    Names(("chunk_level", "action_level")),
    Names(("bf16", "16")),
    Listed(Names(("tensorboard", "wandb"))),
    Text(),
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["1", "nan", "aut"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(kind=st.sampled_from(KINDS), value=ANYTHING)
def test_a_refusal_is_one_line_and_what_it_names_as_near_is_accepted(kind, value):
    reason = Key(name="a.b", kind=kind).wrong(value)
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
@pytest.mark.parametrize("kind", [Whole(), Real(), Whole(1), Real(least=0, most=1)])
def test_what_is_no_number_is_no_number(kind, value):
    assert not kind.accepts(value)


@pytest.mark.parametrize(
    ("kind", "value", "near"),
    [
        (Whole(1), 0, 1),
        (Whole(1), 2.5, 2),
        (Whole(1), 16.0, 16),
        (Whole(1), "3", 3),
        (Whole(1), "ten", None),
        (Whole(0, 7), 9, 7),
        (Whole(), 10**400, 10**400),
        (Real(least=0), -1e-4, 0),
        (Real(least=0, most=1), 1.5, 1),
        (Real(above=0), 0, None),
        (Real(), math.nan, None),
        (Flag(), 1, True),
        (Names(("always", "standard")), "alwayss", "always"),
    ],
)
def test_the_nearest_value_is_named(kind, value, near):
    assert kind.near(value) == near
    assert type(kind.near(value)) is type(near)


@pytest.mark.parametrize("kind", [*KINDS, Block(), Kind(), FREE])
def test_the_words_of_a_kind_in_a_table_are_those_that_a_refusal_prints(kind):
    read = kind_of(kind.words)
    assert read.words == kind.words
    for value in (None, True, 0, -1, 1, 0.5, 1.5, 7, 8, 16, "16", "bf16", "wandb", [1], ["wandb"], {"a": 1}):
        assert read.accepts(value) == kind.accepts(value)


def test_rows_are_read_from_a_text_with_what_null_is():
    found = rows("""
a whole number of at least 1 (needed)
    a.size
true or false (or null)
    b.c: d e
a finite number (null is -1)
    f
""")
    assert [(row.name, row.kind, row.required, row.nullable, row.null) for row in found] == [
        ("a.size", Whole(1), True, False, None),
        ("b.c.d", Flag(), False, True, None),
        ("b.c.e", Flag(), False, True, None),
        ("f", Real(), False, True, -1),
    ]


def test_a_setting_that_alone_is_served_is_the_remedy_of_every_other():
    found = refused(
        """
a.b=false: it is so
a.c=1: one: is enough
~a.d: nothing does it
""",
        {"a.d": {"kind": Block()}},
    )
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
    table = Table((*rows("anything at all\n    a.free"),), default_of={"a.b": 0.5, "a.free": 1}.get)
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
            Key(name="a.size", kind=Whole(1)),
            Key(name="a.block", fate="refused"),
        )
    )
    assert table.find("a.size").fate == "served"
    assert table.find("a.block.inner").fate == "refused"
    assert table.find("a.other").fate == "unread"
    assert table.find("b") is None
    assert table.unknown({"a": {"size": 1}, "b": {"c": 3, "d": None}}) == {"b.c": 3}
    assert table.nearest("a.sise") == "a.size"


def test_a_section_that_is_none_is_named_before_what_would_be_in_it():
    table = Table((Key(name="a.b.c", kind=Whole(1), required=True),))
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
