"""Service times in a file of YAML: read, checked, and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import yaml

from rlinf_async.core.names import did_you_mean
from rlinf_async.lab.outputs import write_output
from rlinf_async.lab.virtual.simulators import DurationDraws, SimulatorTimes
from rlinf_async.lab.virtual.times import (
    PolicyTimes,
    Times,
    TrainingTimes,
    WayTimes,
    WeightTimes,
)
from rlinf_async.observe.files import read_named
from rlinf_async.observe.plain_data import MAX_YAML_BYTES, DamagedError, read_yaml

PART_TYPES: Mapping[str, type[Any]] = {
    "simulators": SimulatorTimes,
    "policy": PolicyTimes,
    "training": TrainingTimes,
    "way": WayTimes,
    "weights": WeightTimes,
}
REQUIRED_PARTS = ("simulators", "policy", "training")
T = TypeVar("T")


def read_times(path: Path) -> Times:
    """The service times in a file.

    Raises:
        ValueError: it cannot be read, lacks a part, or has a key or a value that is none.
    """
    try:
        content = read_yaml(read_named(path, limit=MAX_YAML_BYTES).decode())
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}; see docs/plan.md for what is in one") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8; save the file as UTF-8") from error
    except DamagedError as error:
        raise ValueError(f"{path} cannot be read as YAML: it {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no parts; it needs {', '.join(REQUIRED_PARTS)}")
    missing = [name for name in REQUIRED_PARTS if name not in content]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    given = {name: _part(name, content[name]) if name in PART_TYPES else content[name] for name in content}
    return _made(Times, given, str(path.name))


def write_times(path: Path, times: Times) -> None:
    """Write what `read_times` reads."""
    write_output(path, yaml.safe_dump(_plain(asdict(times)), sort_keys=False))


def _part(name: str, value: object) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r} must be a block of seconds")
    given = dict(value)
    for key in ("decision", "reset"):
        if name == "simulators" and key in given:
            given[key] = _draws(f"{name}.{key}", given[key])
    for key in ("tasks", "by_size"):
        if isinstance(given.get(key), list):
            given[key] = tuple(tuple(one) if isinstance(one, list) else one for one in given[key])
    return _made(PART_TYPES[name], given, name)


def _draws(name: str, value: object) -> DurationDraws:
    """A number is a mean without a spread, a list what was measured."""
    if isinstance(value, int | float):
        return DurationDraws(mean=float(value))
    if isinstance(value, list):
        return DurationDraws.of([float(one) for one in value])
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r} must be seconds, a list of them, or mean and cv")
    seen = tuple(float(one) for one in value.get("seen", ()))
    return _made(DurationDraws, {**value, "seen": seen}, name)


def _made(kind: type[T], given: Mapping[str, Any], where: str) -> T:
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise ValueError(f"unknown key {key} in {where}{did_you_mean(key, known)}")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(f"{where} cannot be read: {error}") from error


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
