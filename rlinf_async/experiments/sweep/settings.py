"""Settings of the three levels, by the names that users give them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from rlinf_async.config import LEVELS, MODES
from rlinf_async.core.names import did_you_mean

PRESETS = {flags: name for name, flags in MODES.items()}


@dataclass(frozen=True)
class Setting:
    """Which levels are on."""

    train: bool
    rollout: bool
    streamer: bool

    @property
    def flags(self) -> dict[str, bool]:
        return dict(zip(LEVELS, astuple(self), strict=True))

    @property
    def active(self) -> bool:
        """Whether any level is on; if none is, a framework's own runner runs, where it has one."""
        return any(self.flags.values())

    @property
    def name(self) -> str:
        """The preset of `async.mode` where there is one, otherwise the levels: `train+rollout`."""
        return PRESETS.get(astuple(self)) or "+".join(level for level, on in self.flags.items() if on)

    @property
    def overrides(self) -> tuple[str, ...]:
        """What makes a config this setting, whatever flags its own `async` block gives."""
        mode = PRESETS.get(astuple(self), "full")
        flags = (f"async.{level}.enabled={str(on).lower()}" for level, on in self.flags.items())
        return (f"async.mode={mode}", *flags)


LADDER = tuple(Setting(*(level < rung for level in range(len(LEVELS)))) for rung in range(len(LEVELS) + 1))
"""The papers' ladder: off, then each level on top of those before."""
ALL = tuple(
    sorted(
        (Setting(*flags) for flags in itertools.product((True, False), repeat=3)),
        key=lambda one: sum(astuple(one)),
    )
)
GROUPS = {"ladder": LADDER, "all": ALL}


def parse_settings(text: str) -> tuple[Setting, ...]:
    """What a list separated by commas names, each setting once.

    Raises:
        ValueError: a name that is no setting, with the nearest that is.
    """
    named = [_named(name.strip()) for name in text.split(",")]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))


def _named(name: str) -> Sequence[Setting]:
    if name in GROUPS:
        return GROUPS[name]
    if name in MODES:
        return [Setting(*MODES[name])]
    parts = name.split("+")
    if set(parts) <= set(LEVELS):
        return [Setting(*(level in parts for level in LEVELS))]
    valid = [*GROUPS, *(setting.name for setting in ALL)]
    raise ValueError(f"setting {name!r} is not one of {', '.join(valid)}{did_you_mean(name, valid)}")
