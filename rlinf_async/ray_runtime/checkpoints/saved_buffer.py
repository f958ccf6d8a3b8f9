"""The books and the buffer as a part of a checkpoint, in files that can be read without running anything.

async_state.json              the version and the ledger
buffer/pieces.json            the pieces, and the run that they are of
buffer/0.safetensors, ...     the data of the pieces: safetensors, and JSON for what is no tensor
buffer/known.safetensors      further facts that the processes of the run know
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.buffer import Ledger, TrajectoryBuffer
from rlinf_async.core.failures import PeerError
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.files import opened, write_whole
from rlinf_async.observe.plain_data import DamagedError, read_json_file
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import is_count

BUFFER_FOLDER = "buffer"
INDEX_FILE = "pieces.json"
KNOWN_FILE = "known.safetensors"

MAX_INDEX_BYTES = 64 << 20
"""Most bytes of the index; a piece has about 300 bytes of it."""
PAYLOAD_NAME = re.compile(r"\d+\.safetensors")

FetchPayload = Callable[[Piece], Awaitable[Any]]
"""Fetches what a piece holds; a PeerError where it has gone."""


@dataclass(frozen=True)
class Resumed:
    """The fate of the buffer of a checkpoint: how many trajectories were kept, how many lost."""

    kept: int
    """Trajectories that wait to be trained again."""
    lost: int
    why: str = ""
    """Why any were lost, in a few words."""
    rollouts: frozenset[tuple[int, str]] = frozenset()
    """Rollouts that are in the buffer again, as (batch, name of their place)."""

    def __str__(self) -> str:
        kept = f"{self.kept} trajectories that had not been trained are there again"
        return f"{kept}; {self.lost} are lost{f': {self.why}' if self.why else ''}" if self.lost else kept


def extended(resumed: Resumed, step: int, settings: RunSettings) -> str:
    """Return a sentence if a deterministic run, resumed after `step`, is not the longer run that it would be
    part of; else nothing.

    A run that has come to its end has collected nothing for the batches behind it.
    """
    lag = settings.asynchrony.max_staleness
    begun = range(step, min(step + lag, settings.batches)) if settings.asynchrony.deterministic else ()
    missing = sorted(set(begun) - {batch for batch, _ in resumed.rollouts})
    if not missing or not step:
        return ""
    return (
        f"async.deterministic: the run before had come to its end at step {step}, with no rollouts for the "
        f"steps behind it; the next {len(missing)} are collected with less lag than {lag}, and numbers from "
        "there on are not those of one longer run"
    )


async def save_buffer(
    folder: Path, version: int, buffer: TrajectoryBuffer, settings: RunSettings, fetch: FetchPayload
) -> None:
    """Write the ledger, and the pieces that have not been trained, as they are at this moment.

    Only one piece is in memory at a time. One that holds something else than tensors and plain data, or that
    has gone with its node, is left out, and is lost if the run is resumed. So is, in a run that continues bit
    for bit, what `version` has acted in, as if it had not been collected yet: how much there is of it depends
    on who was fast.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    # Both are taken here, without an await in between: together they are the state of one moment.
    pieces, ledger = buffer.untrained(), buffer.ledger
    if settings.renews:
        pieces, ledger = _before(version + settings.asynchrony.max_staleness, pieces, ledger)
    write_ledger(folder, version=version, ledger=ledger)
    (folder / BUFFER_FOLDER).mkdir()
    entries = []
    for number, piece in enumerate(pieces):
        name = f"{number}.safetensors"
        try:
            # In a thread, as whoever asks for a ticket meanwhile must not wait for the disk.
            await asyncio.to_thread(write_tensors, folder / BUFFER_FOLDER / name, await fetch(piece))
        except (TypeError, PeerError):
            continue
        facts = asdict(replace(piece, payload=None))
        entries.append({**facts, "payload": name})
    index = {"run": _of_run(settings), "pieces": entries}
    write_whole(folder / BUFFER_FOLDER / INDEX_FILE, _as_json(index), private=False)


@dataclass(frozen=True)
class ProcessKnowledge:
    """Facts that processes know of a run besides its buffer, as plain data and tensors."""

    rollouts: list[Any]
    """A list of each env worker: statistics of the episodes in the buffer, by batch, stage and place."""
    premise: dict[str, Any] | None
    """The result of the first batch; see `core.premise`."""

    def write(self, folder: Path) -> None:
        """Write this record into the checkpoint in `folder`, which has a buffer already."""
        write_tensors(folder / BUFFER_FOLDER / KNOWN_FILE, vars(self))

    @classmethod
    def read(cls, folder: Path) -> ProcessKnowledge:
        """The record in the checkpoint in `folder`; an empty one where that was saved without.

        Raises:
            ValueError: the file cannot be read, or holds something else.
        """
        path = folder / BUFFER_FOLDER / KNOWN_FILE
        try:
            state = read_tensors(path)
            rollouts, premise = state["rollouts"], state["premise"]
            if not isinstance(rollouts, list) or not isinstance(premise, dict | None):
                raise TypeError(f"{KNOWN_FILE} holds something else")
        except FileNotFoundError:
            return cls([], None)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}; {OTHER_CHECKPOINT_REMEDY}") from error
        return cls(rollouts, premise)


def resume_buffer(
    folder: Path,
    version: int,
    gate: AdmissionGate,
    buffer: TrajectoryBuffer,
    settings: RunSettings,
    hold: Callable[[Any], Any],
) -> Resumed:
    """Go on with the ledger of a checkpoint, and with its pieces as far as they can still be trained.

    `hold` makes the payload of a piece of what it holds.
    """
    ledger = read_ledger(folder)
    before, why = ledger.refused["lost at resume"], ""
    try:
        pieces, why = _usable(folder, version, settings)
        pieces_with_data = [replace(piece, payload=_read_payload(folder, piece, hold)) for piece in pieces]
    except (OSError, ValueError, KeyError, TypeError) as error:
        pieces_with_data, why = [], f"{BUFFER_FOLDER} cannot be read: {error}"
    pieces_again = buffer.restore(version, ledger, pieces_with_data)
    # Or the gate would have these rollouts collected a second time.
    gate.skip((piece.ticket.batch, piece.ticket.epoch, piece.ticket.place) for piece in pieces_again)
    losses = ledger.refused["lost at resume"] - before
    # A reason with a count of 0 is not to be printed.
    if not ledger.refused["lost at resume"]:
        del ledger.refused["lost at resume"]
    return Resumed(
        kept=sum(piece.size for piece in pieces_again),
        lost=losses,
        why=why or "they are too old",
        rollouts=frozenset((piece.ticket.batch, place_of(piece.ticket)) for piece in pieces_again),
    )


def place_of(ticket: Ticket) -> str:
    """The place of a rollout in its batch, by name."""
    return f"{ticket.epoch}/{ticket.place}"


def _before(batch: int, pieces: Sequence[Piece], ledger: Ledger) -> tuple[list[Piece], Ledger]:
    """The pieces for the batches before `batch`, and the ledger as if there were no others."""
    earlier = [piece for piece in pieces if piece.ticket.batch < batch]
    late = sum(piece.size for piece in pieces) - sum(piece.size for piece in earlier)
    return earlier, replace(ledger, produced=ledger.produced - late)


def _read_payload(folder: Path, piece: Piece, hold: Callable[[Any], Any]) -> Any:
    return hold(read_tensors(folder / BUFFER_FOLDER / piece.payload))


def _of_run(settings: RunSettings) -> dict[str, Any]:
    """Return the facts that two runs must share, so that one can train the pieces of the other."""
    return {
        "plan": asdict(settings.plan),
        "horizon": settings.horizon,
        "steps_per_decision": settings.steps_per_decision,
        "recomputes": settings.asynchrony.recomputes,
    }


def _usable(folder: Path, version: int, settings: RunSettings) -> tuple[list[Piece], str]:
    """Pieces of whole rollouts that the run can still train, and why others are not, if it is not their age.

    The payload of a piece is the name of its file.
    """
    try:
        index = read_json_file(folder / BUFFER_FOLDER / INDEX_FILE, limit=MAX_INDEX_BYTES)
    except FileNotFoundError:
        return [], "the checkpoint was written without them"
    of_run, entries = index["run"], index["pieces"]
    if not isinstance(of_run, dict) or not isinstance(entries, list):
        raise ValueError(f"{INDEX_FILE} is no index of pieces")
    facts = _of_run(settings)
    differences = [name for name in facts if of_run.get(name) != facts[name]]
    if facts["recomputes"] is False and "recomputes" in differences:
        differences.remove("recomputes")  # what is recomputed needs more than what is not
    if differences:
        return [], f"the run is another now ({', '.join(differences)})"
    pieces = [_piece(entry) for entry in entries]
    fresh = [piece for piece in pieces if _is_fresh(piece, version, settings)]
    return _of_whole_rollouts(fresh, settings.plan.parts), ""


def _is_fresh(piece: Piece, version: int, settings: RunSettings) -> bool:
    in_time = version <= piece.ticket.batch < settings.batches
    return in_time and piece.staleness <= settings.asynchrony.max_staleness


def _of_whole_rollouts(pieces: Sequence[Piece], parts: int) -> list[Piece]:
    """A rollout of which a part is missing is collected again as a whole."""
    part_counts: Counter[Ticket] = Counter(piece.ticket for piece in pieces)
    return [piece for piece in pieces if part_counts[piece.ticket] == parts]


def _piece(entry: Mapping[str, Any]) -> Piece:
    """The piece of an entry of the index; its payload is the name of a file of the buffer.

    Raises:
        ValueError, KeyError, TypeError: the entry is none that `save_buffer` writes.
    """
    piece = Piece(**{**entry, "ticket": Ticket(**entry["ticket"])})
    # A checkpoint may come from others: a name with a path would read a file outside of the buffer.
    if not PAYLOAD_NAME.fullmatch(piece.payload):
        raise ValueError(f"{INDEX_FILE} names {piece.payload!r:.40}, which is no file of the buffer")
    return piece


# -- the ledger --


STATE_FILE = "async_state.json"
LEDGER_COUNTS = ("produced", "trained", "env_steps_trained")
OTHER_CHECKPOINT_REMEDY = "go on from another checkpoint"


def write_ledger(directory: Path, *, version: int, ledger: Ledger) -> None:
    """Write the version and the ledger."""
    state = {
        "version": version,
        "produced": ledger.produced,
        "trained": ledger.trained,
        "env_steps_trained": ledger.env_steps_trained,
        "refused": dict(ledger.refused),
    }
    write_whole(directory / STATE_FILE, _as_json(state), private=False)


def read_ledger(directory: Path) -> Ledger:
    """The books at a checkpoint; empty where it has none, as those of a framework's own runs.

    Raises:
        ValueError: there is a file that holds no books.
    """
    path = Path(directory) / STATE_FILE
    try:
        state = read_json_file(path)
    except FileNotFoundError:
        return Ledger()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; {OTHER_CHECKPOINT_REMEDY}") from error
    except DamagedError as error:
        raise ValueError(f"{path} {error}; {OTHER_CHECKPOINT_REMEDY}") from error
    counts: dict[str, Any] = (
        {name: state.get(name) for name in LEDGER_COUNTS} if isinstance(state, dict) else {}
    )
    refusals = state.get("refused") if isinstance(state, dict) else None
    if not isinstance(refusals, dict) or not all(map(is_count, (*counts.values(), *refusals.values()))):
        raise ValueError(
            f"{path} lacks counts of trajectories ({', '.join(LEDGER_COUNTS)}, refused); "
            f"{OTHER_CHECKPOINT_REMEDY}"
        )
    return Ledger(**counts, refused=Counter(refusals))


# -- files of tensors and plain data --


TREE_KEY = "tree"


def write_tensors(path: Path, value: object) -> None:
    """Write nested dicts (with texts for keys), lists and tuples of tensors, arrays, texts and numbers.

    Raises:
        TypeError: there is something else in it.
        OSError: the disk is full, or the file cannot be written.
    """
    tensors: list[torch.Tensor] = []
    tree = json.dumps(_describe(value, tensors))
    try:
        save_file({str(n): tensor for n, tensor in enumerate(tensors)}, path, metadata={TREE_KEY: tree})
    except SafetensorError as error:  # the library has an error of its own for what the system says
        raise OSError(f"{path.name} cannot be written: {error}") from error


def read_tensors(path: Path) -> Any:
    """Read the value that `write_tensors` has written, into memory of its own.

    Raises:
        OSError, ValueError: the file is not there, a link, no file, cut off or damaged.
    """
    try:
        # By its descriptor: what was checked is read, whatever stands at the path by now.
        with opened(path) as number, safe_open(f"/proc/self/fd/{number}", framework="pt") as file:
            tree = json.loads((file.metadata() or {})[TREE_KEY])
            return _build(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except OSError:
        # As it is: a file that is missing is no damage to whoever asks for it.
        raise
    except Exception as error:
        # Of a damaged file safetensors, json and torch raise errors of many classes.
        raise ValueError(f"{path.name} cannot be read: {error}") from error


def _describe(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The shape of `value` as JSON: `[kind, content]`, in which tensors are their places in `tensors`."""
    if isinstance(value, torch.Tensor):
        # A copy, as the library refuses tensors that share memory.
        tensors.append(value.detach().cpu().contiguous().clone())
        return ["tensor", len(tensors) - 1]
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return ["texts", value.tolist()]
        return ["array", _describe(torch.from_numpy(value.copy()), tensors)]
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return ["dict", {name: _describe(item, tensors) for name, item in value.items()}]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_describe(item, tensors) for item in value]]
    if value is None or isinstance(value, str | bool | int | float):
        return ["plain", value]
    raise TypeError(f"a {type(value).__name__} is neither a tensor nor plain data")


def _build(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    kind, content = tree
    if kind == "tensor":
        return tensors[str(content)]
    if kind == "array":
        return _build(content, tensors).numpy()
    if kind == "texts":
        return np.array(content)
    if kind == "dict":
        return {name: _build(item, tensors) for name, item in content.items()}
    if kind in ("list", "tuple"):
        items = [_build(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content


def _as_json(content: object) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
