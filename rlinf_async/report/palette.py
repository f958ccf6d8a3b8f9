"""The colours of the bench's chart and some more: apart for the colour-blind, and on light and dark paper."""

from __future__ import annotations

from rlinf_async.core.status import WORDS
from rlinf_async.report.lanes import LEARNER, REST

ORANGE, LIGHT_ORANGE = "#d9480f", "#f2a65a"
GREY, DARK_GREY = "#9aa5b1", "#6b7684"
BLUE, LIGHT_BLUE, VIOLET = "#2878a0", "#7cc0de", "#8a6fb8"
FAINT = "rgba(128,140,152,0.18)"

OF_KINDS = {
    "step": ORANGE,
    "reset": LIGHT_ORANGE,
    "ask": GREY,
    "gate": DARK_GREY,
    "put": BLUE,
    "forward": ORANGE,
    "load": BLUE,
    "offload": LIGHT_BLUE,
    "idle": GREY,
    "accept": ORANGE,
    "finish": ORANGE,
    "copy": BLUE,
    "fetch": GREY,
    "evaluate": VIOLET,
    "save": LIGHT_BLUE,
}
"""Work is orange, waiting is grey, carrying things about is blue."""
OF_WORDS = {
    **{WORDS[kind]: colour for kind, colour in OF_KINDS.items() if kind in WORDS},
    LEARNER.rest: DARK_GREY,
    REST: FAINT,
}
DARK_TEXT, LIGHT_TEXT = "#1b1f24", "#ffffff"
ON = {LIGHT_ORANGE: DARK_TEXT, GREY: DARK_TEXT, LIGHT_BLUE: DARK_TEXT}
"""What can be read on a colour, where white cannot."""

RUNS = (ORANGE, BLUE, LIGHT_ORANGE, GREY, VIOLET, LIGHT_BLUE)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def of_run(index: int) -> str:
    return RUNS[index % len(RUNS)]


def dash_of_run(index: int) -> str:
    return DASHES[index % len(DASHES)]


def on(colour: str) -> str:
    """The colour of text on `colour`."""
    return ON.get(colour, LIGHT_TEXT)
