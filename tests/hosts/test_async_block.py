from omegaconf import OmegaConf

from rlinf_async.hosts.async_block import plain


def test_what_a_config_leaves_to_others_is_not_there_in_plain_data():
    cfg = OmegaConf.create({"a": 1, "b": "???", "c": {"d": "???", "e": "${a}"}, "f": [{"g": "???"}, "???"]})
    assert plain(cfg) == {"a": 1, "c": {"e": 1}, "f": [{}, "???"]}
