"""What a run has left in its directory, as far as it can be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.core.nested import lookup
from rlinf_async.core.spans import Span, read_spans

FILES = ("config.yaml", "run.json", "metrics.jsonl", "summary.json", "status.json", "trace", "tensorboard")
"""By any of these a run directory is known."""


DEEPEST = 100
LARGEST = 1e15
"""A larger number is no measurement: a damaged file has it, or a sum that has overflowed."""


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The records of one run; what is not there is empty, and `missing` says so and what follows.

    A run that is still going, that has crashed, or whose files were cut off can be read like any other. If
    it was started several times in one directory, the steps that were taken again count as they were last.
    """

    path: Path
    name: str
    """Of the directory."""
    config: dict[str, Any]
    facts: dict[str, Any]
    """`run.json`."""
    metrics: list[dict[str, float]]
    """One for each step, in order; numbers only, and finite ones."""
    summary: dict[str, Any]
    status: dict[str, Any]
    spans: list[Span]
    missing: list[str]
    """Sentences."""

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Everything that can be read in the directory `path`.

        Raises:
            ValueError: this is no run directory; the message says why.
        """
        _check(path)
        missing: list[str] = []
        config = _yaml(path / "config.yaml", missing) or _yaml(path / "tensorboard" / "config.yaml", missing)
        facts = _json(path / "run.json", missing)
        metrics = _metrics(path / "metrics.jsonl", missing)
        summary = _json(path / "summary.json", missing)
        status = _json(path / "status.json", missing)
        spans = _spans(path / "trace", missing)
        run = cls(
            path=path,
            name=path.resolve().name,
            config=config,
            facts=facts,
            metrics=metrics,
            summary=summary,
            status=status,
            spans=spans,
            missing=missing,
        )
        missing.extend(_what_follows(run))
        return run

    @property
    def stock(self) -> bool:
        """Whether RLinf's own loop ran here, which leaves none of our records."""
        ours = (self.facts, self.metrics, self.summary, self.status, self.spans)
        return not any(ours) and (self.path / "tensorboard").is_dir()

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the config."""
        value = lookup(self.config, key)
        return default if value is None else value


def _check(path: Path) -> None:
    try:
        if not path.exists():
            raise ValueError(f"{path} does not exist; a run directory is what runner.logger.log_path names")
        if not path.is_dir():
            raise ValueError(f"{path} is a file; give the directory of the run")
        there = {each.name for each in path.iterdir()}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not there & set(FILES):
        raise ValueError(f"{path} is no run directory: it has none of {', '.join(FILES)}")


def _text(path: Path, missing: list[str]) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        missing.append(f"{path.name} cannot be read ({error.strerror}).")
        return ""


def _mapping(path: Path, missing: list[str], parsed: Any) -> dict[str, Any]:
    if isinstance(parsed, dict) and _sound(parsed):
        return parsed
    missing.append(f"{path.name} does not hold what a run writes there, and is left out.")
    return {}


def _sound(tree: Any, above: tuple[int, ...] = ()) -> bool:
    """Whether plain data has an end: YAML can hold what contains itself."""
    if not isinstance(tree, dict | list):
        return True
    if id(tree) in above or len(above) > DEEPEST:
        return False
    inner = tree.values() if isinstance(tree, dict) else tree
    return all(_sound(each, (*above, id(tree))) for each in inner)


def _json(path: Path, missing: list[str]) -> dict[str, Any]:
    text = _text(path, missing)
    if not text:
        return {}
    try:
        return _mapping(path, missing, json.loads(text))
    except (ValueError, RecursionError):
        missing.append(f"{path.name} is cut off or damaged, and is left out.")
        return {}


def _yaml(path: Path, missing: list[str]) -> dict[str, Any]:
    text = _text(path, missing)
    if not text.strip():
        return {}
    try:
        return _mapping(path, missing, yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        missing.append(f"{path.name} is cut off or damaged, and is left out.")
        return {}


def _metrics(path: Path, missing: list[str]) -> list[dict[str, float]]:
    steps: dict[int, dict[str, float]] = {}
    bad, before = 0, 0
    for line in _text(path, missing).splitlines():
        numbers = _numbers(line)
        if numbers is None:
            bad += 1
            continue
        step = int(numbers["step"])
        if step <= before:  # the run was started again, perhaps from a checkpoint
            steps = {number: kept for number, kept in steps.items() if number < step}
        steps[step], before = numbers, step
    if bad:
        lines = "1 line" if bad == 1 else f"{bad} lines"
        missing.append(f"{lines} of {path.name} cannot be read and {'is' if bad == 1 else 'are'} left out.")
    return list(steps.values())


def _numbers(line: str) -> dict[str, float] | None:
    """The finite numbers of a line of `metrics.jsonl`; None if it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    numbers = {name: value for name, value in record.items() if _finite(value)}
    return numbers if "step" in numbers else None


def _finite(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and -LARGEST < value < LARGEST


def _spans(path: Path, missing: list[str]) -> list[Span]:
    if not path.is_dir():
        return []
    try:
        spans = [span for span in read_spans(path) if _lasts(span)]
    except (OSError, ValueError, TypeError, OverflowError) as error:
        missing.append(f"trace/ cannot be read ({type(error).__name__}).")
        return []
    cut = _started_again(spans)
    if cut is None:
        return spans
    missing.append("The trace holds an earlier start of this run too, which is left out.")
    return [span for span in spans if span["began"] >= cut]


def _lasts(span: Span) -> bool:
    return _finite(span["began"]) and _finite(span["ended"]) and span["began"] <= span["ended"]


def _started_again(spans: Sequence[Span]) -> float | None:
    """When the start before the last one ended its last step; None where there was one start."""
    cut, last = None, None
    for span in spans:
        if span["process"] != "driver" or span["kind"] != "learn" or not _finite(span.get("step")):
            continue
        if last is not None and span["step"] <= last["step"]:
            cut = last["ended"]
        last = span
    return cut


def _what_follows(run: RunFiles) -> list[str]:
    """What is not there, and what therefore cannot be shown."""
    if run.stock:
        return [
            "This is a run of RLinf's own loop, with every level off: it has TensorBoard events and none of "
            "the records that this page is made of, so that nothing but its config is shown."
        ]
    said = []
    if not run.config:
        said.append("There is no readable config.yaml: advice assumes the defaults.")
    if not run.facts:
        said.append("There is no readable run.json: versions, levels and the plan of the run are unknown.")
    if not run.metrics:
        said.append("No step has been reported in metrics.jsonl: there are no rates, busy shares or curves.")
    if not run.summary:
        said.append("There is no summary.json, " + _not_ended(run))
    if not run.spans:
        off = run.setting("async.trace") is False
        why = "The run was made with async.trace=false" if off else "There is no trace"
        said.append(f"{why}: what processes waited for, time lines and histograms cannot be shown.")
    elif not any(span["process"] == "driver" for span in run.spans):
        said.append("The trace lacks the driver: shares are of the time from the first to the last record.")
    return said


def _not_ended(run: RunFiles) -> str:
    why = "because the run has not ended in order: it is going on, was interrupted or has failed"
    step, total = run.status.get("step"), run.status.get("total")
    return f"{why}; it was last seen at step {step} of {total}." if _finite(step) else f"{why}."
