from omegaconf import OmegaConf

from rlinf_async.hosts.async_block import plain, unused_settings


def test_what_a_config_leaves_to_others_is_not_there_in_plain_data():
    cfg = OmegaConf.create({"a": 1, "b": "???", "c": {"d": "???", "e": "${a}"}, "f": [{"g": "???"}, "???"]})
    assert plain(cfg) == {"a": 1, "c": {"e": 1}, "f": [{}, "???"]}


def test_settings_of_a_level_that_is_off_are_one_remark():
    block = {"train": {"enabled": False, "max_staleness": 3, "correction": "tis"}, "rollout": {"shards": 2}}
    assert list(unused_settings(block, {"train": False, "rollout": True, "streamer": False})) == [
        "async.train.max_staleness=3, async.train.correction='tis' have no effect: async.train.enabled is "
        "false"
    ]
    assert not list(unused_settings({"train": {"enabled": False}}, {"train": False}))
    assert not list(unused_settings({"train": "???", "rollout": True}, {"train": False, "rollout": False}))
