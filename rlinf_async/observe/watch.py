"""The output of `rlinf-async status --watch`: a run from outside, again and again, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlinf_async.observe.status import lines_of, status_facts

EVERY_S = 2.0
"""Seconds between two looks; a driver writes every few seconds."""


def watch(
    run: Path, *, every_s: float = EVERY_S, wait: Callable[[float], object] = time.sleep
) -> Iterator[dict[str, Any]]:
    """Yield the result of `status_facts` every `every_s` seconds; the last time when the run has ended.

    Raises:
        ValueError: there is no such run, or it has written nothing yet.
    """
    while True:
        facts = status_facts(run)
        yield facts
        if facts["state"] == "ended":
            return
        wait(every_s)


def show_watched(looks: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Show what `watch` says: in place in a terminal, elsewhere a line with the time of day for each look.

    An interrupt, by which a reader leaves, ends it without an error.
    """
    try:
        if not console.is_terminal:
            for facts in looks:
                console.print(_line(facts), soft_wrap=True)
            return
        with Live(console=console, auto_refresh=False) as live:
            for facts in looks:
                live.update(Text("\n".join(lines_of(facts))), refresh=True)
    except KeyboardInterrupt:
        return


def _line(facts: Mapping[str, Any]) -> Text:
    first, *rest = lines_of(facts)
    pace = f", {rest[0].strip()}" if facts["pace"] and rest else ""
    return Text(f"{time.strftime('%H:%M:%S')} {first}{pace}")
