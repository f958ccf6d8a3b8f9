"""Tables of the results on machines made of namespaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.lab.table import markdown

COLOUR_CHANNELS = 3


def picture_bytes(name: str) -> int:
    """Return the bytes of an observation's picture in the case `name`, such as `2 nodes, 64 px`."""
    pixels = int(name.removesuffix(" px").rpartition(" ")[2])
    return pixels * pixels * COLOUR_CHANNELS


def over_linear(results: Mapping[str, Any], name: str) -> float | None:
    """Return the decisions per second of a case over those of one node times the number of nodes.

    None without a result of one node.
    """
    nodes, _, pixels = name.partition(" ")
    alone = results.get(f"1 node, {pixels.partition(', ')[2]}")
    if alone is None:
        return None
    return float(results[name]["decisions_per_s"] / (int(nodes) * alone["decisions_per_s"]))


def tables(results: Mapping[str, Any]) -> str:
    """Return Markdown tables of throughput, of bytes, and of faults."""
    steady = {name: found for name, found in results.items() if "decisions_per_s" in found}
    faults = {name: found for name, found in results.items() if "still_s" in found}
    rates = [
        [name, f"{found['decisions_per_s']:g}", _ratio(over_linear(results, name)), f"{found['load']:g}"]
        for name, found in steady.items()
        if name[0].isdigit()
    ]
    times = [
        [name, f"{found['still_s']:g} s", _seconds(found.get("noticed_s")), "; ".join(found["said"])]
        for name, found in faults.items()
    ]
    return "\n\n".join(
        (
            markdown(["case", "decisions/s", "over linear", "load"], rates),
            markdown(["case", "picture", *(f"node {number}" for number in range(3))], [*_bytes(steady)]),
            markdown(["fault", "without a step for at most", "said within", "what was said"], times),
        )
    )


def _bytes(steady: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, found in steady.items():
        nodes = [f"{sent:,} sent, {got:,} received" for sent, got in found["bytes_per_decision"]]
        yield [name, f"{picture_bytes(name):,}", *nodes, *["–"] * (3 - len(nodes))]


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:g} s"
