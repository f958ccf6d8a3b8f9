"""Settings of the three levels and of dead work, by the users' names for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rlinf_async.config import LEVEL_NAMES, MODE_LEVELS, SKIP_KINDS, SKIPPING_MODES
from rlinf_async.core.config_keys import did_you_mean

Axis = tuple[str, Sequence[str]]
"""A varied key, with Hydra's `++` if the config may lack it, and its values in Hydra's syntax."""
SKIP_NAME = "skip"
ALL_LEVELS_NAME = "levels"
MODE_OF_FLAGS = {(*flags, name in SKIPPING_MODES): name for name, flags in MODE_LEVELS.items()}
NAME_OF_FLAGS = {**MODE_OF_FLAGS, (True, True, True, False): ALL_LEVELS_NAME}
FLAGS_OF_NAME = {name: flags for flags, name in NAME_OF_FLAGS.items()}


@dataclass(frozen=True)
class Setting:
    """The active levels, a flag for leaving out dead work, and the values of varied keys."""

    train: bool
    rollout: bool
    streamer: bool
    skip: bool = False
    """True if all of `async.skip` is on, False if none of it is."""
    values: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    """Dotted keys of the config, and their values in Hydra's syntax."""

    @property
    def levels(self) -> tuple[bool, bool, bool]:
        return self.train, self.rollout, self.streamer

    @property
    def flags(self) -> dict[str, bool]:
        return dict(zip(LEVEL_NAMES, self.levels, strict=True))

    @property
    def active(self) -> bool:
        """True if a level or `skip` is on; otherwise a framework's own runner runs, if it has one."""
        return any(self.levels) or self.skip

    @property
    def name(self) -> str:
        """The name of the levels, and `key=value` for each varied key, with the key's last word."""
        key_words = [f"{short(key)}={value}" for key, value in self.values]
        return " ".join([self.levels_name, *key_words])

    @property
    def levels_name(self) -> str:
        """The preset of `async.mode` if there is one, `levels` for all levels without `skip`, otherwise the
        parts, such as `train+rollout`.
        """
        parts = [level for level, on in self.flags.items() if on] + [SKIP_NAME] * self.skip
        return NAME_OF_FLAGS.get((*self.levels, self.skip)) or "+".join(parts)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the overrides that give a config this setting, whatever the flags in its `async` block."""
        mode = MODE_OF_FLAGS.get((*self.levels, self.skip), "full")
        levels = {f"{level}.enabled": on for level, on in self.flags.items()}
        kinds = {f"{SKIP_NAME}.{kind}": self.skip for kind in SKIP_KINDS}
        flags = (f"async.{key}={str(on).lower()}" for key, on in {**levels, **kinds}.items())
        return (f"async.mode={mode}", *flags, *(f"{key}={value}" for key, value in self.values))

    @property
    def baseline(self) -> tuple[tuple[str, str], ...]:
        """Return the values of keys outside of `async`: a run without levels ignores keys under `async`."""
        return tuple((key, value) for key, value in self.values if not _of_levels(key))


LEAN_SETTING, FULL_SETTING = (Setting(*FLAGS_OF_NAME[mode]) for mode in ("lean", "full"))
LADDER_SETTINGS = (
    *(Setting(*(level < rung for level in range(len(LEVEL_NAMES)))) for rung in range(len(LEVEL_NAMES) + 1)),
    FULL_SETTING,
)
"""The papers' ladder: off, then one more level at each step; in the last, dead work is left out, too."""
ALL_SETTINGS = (
    *sorted(
        (Setting(*flags) for flags in itertools.product((True, False), repeat=3)),
        key=lambda one: sum(one.levels),
    ),
    LEAN_SETTING,
    FULL_SETTING,
)
SETTING_GROUPS = {"ladder": LADDER_SETTINGS, "all": ALL_SETTINGS}


def parse_settings(text: str) -> tuple[Setting, ...]:
    """Return the settings of a list separated by commas, each once.

    Raises:
        ValueError: a name that is no setting, with the nearest that is.
    """
    settings = [_settings_of_name(name.strip()) for name in text.split(",")]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(settings)))


def _settings_of_name(name: str) -> Sequence[Setting]:
    if name in SETTING_GROUPS:
        return SETTING_GROUPS[name]
    if name in FLAGS_OF_NAME:
        return [Setting(*FLAGS_OF_NAME[name])]
    parts = name.split("+")
    if set(parts) <= {*LEVEL_NAMES, SKIP_NAME}:
        return [Setting(*(part in parts for part in (*LEVEL_NAMES, SKIP_NAME)))]
    valid = [*SETTING_GROUPS, *(setting.name for setting in ALL_SETTINGS)]
    raise ValueError(f"setting {name!r} is not one of {', '.join(valid)}{did_you_mean(name, valid)}")


def varied(settings: Sequence[Setting], axes: Sequence[Axis]) -> tuple[Setting, ...]:
    """Return every setting with every combination of the values of `axes`.

    Keys under `async` have no effect while all levels are off: that setting is combined only with the other
    keys.
    """
    combinations = [
        replace(setting, values=tuple(zip([key for key, _ in axes], combination, strict=True)))
        for setting in settings
        for combination in itertools.product(*(values for _, values in axes))
    ]
    return tuple(
        dict.fromkeys(one if one.active else replace(one, values=one.baseline) for one in combinations)
    )


def parse_axis(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a text such as `key=1,2,4` into the key and its values, each once.

    Raises:
        ValueError: the text has no key, or no value.
    """
    key, equals, values = text.partition("=")
    given = [value.strip() for value in _split(values) if value.strip()]
    # By what they mean: 1e-3 and 0.001 would be two rows of the same setting.
    distinct_values: dict[Any, str] = {}
    for value in given:
        distinct_values.setdefault(_meaning(value), value)
    distinct = tuple(distinct_values.values())
    if not (key.strip() and equals and distinct):
        raise ValueError(f"--vary {text} must be a key and its values, as in async.train.max_staleness=0,1,2")
    bare = key.strip().lstrip("+")
    # Two: whether or not the config has the key.
    return f"++{bare}" if key.strip() != bare else bare, distinct


def _meaning(value: str) -> Any:
    """Return a number as a number, of its type, and any other value as it is written."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind.__name__, kind(value)
    return value


def short(key: str) -> str:
    """Return the last word of a dotted key."""
    return key.lstrip("+").rpartition(".")[2]


def _of_levels(key: str) -> bool:
    return key.lstrip("+").partition(".")[0] == "async"


def _split(values: str) -> list[str]:
    """Split at commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in values:
        if quote or sign in "'\"":
            quote = "" if sign == quote else quote or sign
        depth += (sign in "[{(") - (sign in "]})")
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts
