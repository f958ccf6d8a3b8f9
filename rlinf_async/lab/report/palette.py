"""The colours of the page, distinct for colour-blind readers and on light and dark backgrounds."""

from __future__ import annotations

from rlinf_async.lab.report.timelines import LEARNER_PART, REST_WORD
from rlinf_async.observe.spans import SPAN_KINDS, Role, kind_words

ORANGE, LIGHT_ORANGE = "#d9480f", "#f2a65a"
GREY, DARK_GREY = "#9aa5b1", "#6b7684"
BLUE, LIGHT_BLUE, VIOLET = "#2878a0", "#7cc0de", "#8a6fb8"
DARK_RED = "#7a0019"
FAINT_COLOUR = "rgba(128,140,152,0.18)"

OF_ROLES = {
    Role.WORK: ORANGE,
    Role.PREPARATION: LIGHT_ORANGE,
    Role.RESTARTING: DARK_RED,
    Role.CARRYING: BLUE,
    Role.WAITING: GREY,
    Role.HELD_BACK: DARK_GREY,
    Role.EVALUATION: VIOLET,
    Role.SAVING: LIGHT_BLUE,
}
"""Work is orange, waiting is grey, moving data or weights is blue, a restart is dark red."""
OF_KINDS = {kind.name: OF_ROLES[kind.role] for kind in SPAN_KINDS.values() if kind.role is not None}
OF_WORDS = {
    **{kind_words(kind): colour for kind, colour in OF_KINDS.items()},
    LEARNER_PART.rest: DARK_GREY,
    REST_WORD: FAINT_COLOUR,
}
DARK_TEXT, LIGHT_TEXT = "#1b1f24", "#ffffff"
TEXT_COLOURS = {LIGHT_ORANGE: DARK_TEXT, GREY: DARK_TEXT, LIGHT_BLUE: DARK_TEXT}
"""Text colours on backgrounds where white text is hard to read."""

RUN_COLOURS = (ORANGE, BLUE, LIGHT_ORANGE, GREY, VIOLET, LIGHT_BLUE)
RUN_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def of_run(index: int) -> str:
    return RUN_COLOURS[index % len(RUN_COLOURS)]


def dash_of_run(index: int) -> str:
    return RUN_DASHES[index % len(RUN_DASHES)]


def on(colour: str) -> str:
    """Return the text colour on `colour`."""
    return TEXT_COLOURS.get(colour, LIGHT_TEXT)
