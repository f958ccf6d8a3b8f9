import itertools

import pytest

from rlinf_async.config import LEVEL_NAMES, MODE_LEVELS, SKIP_KINDS, AsyncConfig
from rlinf_async.lab.sweep.settings import ALL_SETTINGS, LADDER_SETTINGS, Setting, parse_settings


def names(text: str) -> list[str]:
    return [setting.name for setting in parse_settings(text)]


def test_the_ladder_adds_one_level_after_the_other_and_leaves_dead_work_out_at_last():
    assert names("ladder") == ["off", "train", "train+rollout", "levels", "full"]
    assert LADDER_SETTINGS[2] == Setting(train=True, rollout=True, streamer=False)


def test_all_are_the_eight_settings_of_levels_and_the_two_presets_without_dead_work():
    assert len(set(ALL_SETTINGS)) == 10
    assert names("all") == [
        *("off", "train", "rollout", "streamer"),
        *("train+rollout", "train+streamer", "rollout+streamer", "levels"),
        *("lean", "full"),
    ]


def test_a_list_names_presets_and_combinations_in_any_order_of_their_levels():
    assert names("full, rollout+train,off") == ["full", "train+rollout", "off"]
    assert names("skip+rollout+train+streamer,skip") == ["full", "lean"]
    assert names("train+skip") == ["train+skip"]


def test_a_setting_that_is_named_twice_is_run_once():
    assert names("off,ladder,full") == [*("off", "train", "train+rollout", "levels", "full")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("off,ful", "setting 'ful' is not one of .*; did you mean 'full'"),
        ("train+rolout", "did you mean 'train\\+rollout'"),
        ("laddder", "did you mean 'ladder'"),
        ("off+train", "setting 'off\\+train' is not one of"),
        ("", "setting '' is not one of ladder, all, off"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_that_is_known(text, words):
    with pytest.raises(ValueError, match=words):
        parse_settings(text)


def test_overrides_make_any_async_block_the_setting():
    for setting, present in itertools.product(ALL_SETTINGS, ALL_SETTINGS):
        block = {level: {"enabled": on} for level, on in present.flags.items()}
        block["skip"] = dict.fromkeys(SKIP_KINDS, present.skip)
        for override in setting.overrides:
            key, value = override.removeprefix("async.").split("=")
            level, _, flag = key.partition(".")
            if flag:
                block[level][flag] = value == "true"
            else:
                block[key] = value
        made = AsyncConfig.from_mapping(block)
        assert made.levels == setting.flags
        assert set(made.skip.kinds.values()) == {setting.skip}
        assert block["mode"] == (setting.name if setting.name in MODE_LEVELS else "full")


def test_every_level_of_the_config_is_known():
    assert set(LEVEL_NAMES) == set(AsyncConfig().levels)
