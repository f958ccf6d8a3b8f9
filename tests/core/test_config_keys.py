from rlinf_async.core.config_keys import did_you_mean, dotted, lookup, nearest

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


def test_what_is_no_text_has_a_nearest_name_too():
    assert nearest(12, ("122", "3")) == "122"


def test_nested_mappings_have_dotted_keys():
    assert dotted(TREE) == {"a.b.c": 1, "a.d": [2, {"e": 3}], "f": {}, "g": None}
    assert dotted({"x": 1, "y": {"z": 2, "w": {"v": 3}}}) == {"x": 1, "y.z": 2, "y.w.v": 3}


def test_a_dotted_key_is_looked_up_through_mappings_only():
    assert [lookup(TREE, key) for key in ("a.b.c", "a.b", "f", "g")] == [1, {"c": 1}, {}, None]
    assert [lookup(TREE, key) for key in ("a.x", "a.b.c.d", "a.d.e", "", "g.h")] == [None] * 5
