from rlinf_async.core.config_keys import (
    completed,
    did_you_mean,
    dotted,
    dotted_names,
    lookup,
    nearest,
    nearest_key,
)

KNOWN = ("train", "rollout", "streamer")
TREE = {"a": {"b": {"c": 1}, "d": [2, {"e": 3}]}, "f": {}, "g": None}


def test_a_misspelt_name_is_the_nearest_known_one():
    assert nearest("trian", KNOWN) == "train"
    assert did_you_mean("rolout", iter(KNOWN)) == "; did you mean 'rollout'?"


def test_a_name_that_is_like_none_is_nobodys():
    assert nearest("xyz", KNOWN) is None
    assert did_you_mean("xyz", KNOWN) == ""
    assert nearest("trXXX", KNOWN) is None
    assert nearest("trXXX", KNOWN, cutoff=0.3) == "train"


def test_small_and_large_letters_are_the_same():
    assert nearest("TRAIN", KNOWN) == "train"


def test_what_is_no_text_has_a_nearest_name_too():
    assert nearest(12, ("122", "3")) == "122"


def test_nested_mappings_have_dotted_keys():
    assert dotted(TREE) == {"a.b.c": 1, "a.d": [2, {"e": 3}], "f": {}, "g": None}
    assert dotted({"x": 1, "y": {"z": 2, "w": {"v": 3}}}) == {"x": 1, "y.z": 2, "y.w.v": 3}


def test_a_dotted_key_is_looked_up_through_mappings_only():
    assert [lookup(TREE, key) for key in ("a.b.c", "a.b", "f", "g")] == [1, {"c": 1}, {}, None]
    assert [lookup(TREE, key) for key in ("a.x", "a.b.c.d", "a.d.e", "", "g.h")] == [None] * 5


def test_a_key_with_a_dot_is_named_only_where_it_would_be_a_key_of_a_known_block():
    tree = {
        "a": {"b": {}, "b.c": 1, "own": {}, "own.x": 2},
        "mine": {"p": {}, "p.q": 3},
        "a.d": 4,
        "other.e": 5,
    }
    said = list(dotted_names(tree, {"a", "a.b"}))
    assert said == [
        "the key 'b.c' in a has a dot, so that it sets nothing in a.b; write it as b: {c: ...}",
        "the key 'a.d' has a dot, so that it sets nothing in a; write it as a: {d: ...}",
    ]


def test_a_long_section_makes_no_key_of_it_similar():
    keys = ("settings.lr", "settings.horizon", "actor.optim.lr")
    assert nearest_key("settings.clip", keys) is None
    assert nearest_key("settings.horzon", keys) == "settings.horizon"
    assert nearest_key("actor.optm.lr", keys) == "actor.optim.lr"


def test_a_section_gets_the_usual_values_of_keys_that_are_absent_or_null():
    usual = {"seed": 7, "group_size": 1}
    section = {"seed": None, "group_size": 0, "own": None}
    assert completed(section, usual) == {"seed": 7, "group_size": 0, "own": None}
    assert completed({}, usual) == usual
