"""The ledger and the buffer in a checkpoint, in files that can be read without executing code.

async_state.json              the version and the ledger
buffer/pieces.json            the pieces, and the facts of the run that has made them
buffer/0.safetensors, ...     the data of the pieces: tensors, and JSON for all other values
buffer/known.safetensors      the knowledge of the run's processes: `ProcessKnowledge`
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
from rlinf_async.core.types import Piece, Ticket, place_of
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.files import opened, write_whole
from rlinf_async.observe.read_files import DamagedError, read_json_file
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import is_count

BUFFER_FOLDER = "buffer"
INDEX_FILE = "pieces.json"
KNOWN_FILE = "known.safetensors"

MAX_INDEX_BYTES = 64 << 20
"""The largest index that is read; a piece takes about 300 bytes of it."""
PAYLOAD_NAME = re.compile(r"\d+\.safetensors")

FetchPayload = Callable[[Piece], Awaitable[Any]]
"""Fetches the data of a piece; raises a PeerError if the data was lost with its node."""


@dataclass(frozen=True)
class Resumed:
    """The outcome of resuming from a saved buffer: numbers of trajectories kept and lost."""

    kept: int
    """Trajectories that are in the buffer again, to be trained."""
    lost: int
    why: str = ""
    """The reason for losses, in a few words."""
    rollouts: frozenset[tuple[int, str]] = frozenset()
    """Rollouts that are in the buffer again, as (batch, `place_of` their ticket)."""

    def __str__(self) -> str:
        kept = f"{self.kept} trajectories that had not been trained are restored"
        return f"{kept}; {self.lost} are lost{f': {self.why}' if self.why else ''}" if self.lost else kept


def extended(resumed: Resumed, step: int, settings: RunSettings) -> str:
    """Return a sentence if a deterministic run, resumed after `step`, differs from one longer run; else "".

    A run that has reached its last step has collected no rollouts for later batches, as a longer run would.
    """
    lag = settings.asynchrony.max_staleness
    begun = range(step, min(step + lag, settings.batches)) if settings.asynchrony.deterministic else ()
    missing = sorted(set(begun) - {batch for batch, _ in resumed.rollouts})
    if not missing or not step:
        return ""
    return (
        f"async.deterministic: the earlier run ended at step {step}, with no rollouts for later steps; the "
        f"next {len(missing)} steps are trained with a lag below {lag}, so that results differ from those of "
        "one longer run"
    )


async def save_buffer(
    folder: Path, version: int, buffer: TrajectoryBuffer, settings: RunSettings, fetch: FetchPayload
) -> None:
    """Write the ledger, and the pieces that have not been trained, as they are at this moment.

    Only one piece is in memory at a time. A piece is left out, and lost if the run is resumed, if it holds
    values other than tensors and plain data, or if its data was lost with its node. A run that continues bit
    for bit also leaves out the pieces of the newest batch, for which `version` acts, as if they had not been
    collected yet: their number depends on timing.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    # Without an await in between: both are the state of one moment.
    pieces, ledger = buffer.untrained(), buffer.ledger
    if settings.renews:
        pieces, ledger = _before(version + settings.asynchrony.max_staleness, pieces, ledger)
    write_ledger(folder, version=version, ledger=ledger)
    (folder / BUFFER_FOLDER).mkdir()
    entries = []
    for number, piece in enumerate(pieces):
        name = f"{number}.safetensors"
        try:
            # In a thread: env workers that ask for tickets meanwhile must not wait for the disk.
            await asyncio.to_thread(write_tensors, folder / BUFFER_FOLDER / name, await fetch(piece))
        except (TypeError, PeerError):
            continue
        facts = asdict(replace(piece, payload=None))
        entries.append({**facts, "payload": name})
    index = {"run": _of_run(settings), "pieces": entries}
    write_whole(folder / BUFFER_FOLDER / INDEX_FILE, _as_json(index), private=False)


@dataclass(frozen=True)
class ProcessKnowledge:
    """The state of a run's processes besides the buffer, as plain data and tensors."""

    rollouts: list[Any]
    """By env worker: statistics of the episodes in the buffer, by batch, stage and place."""
    premise: dict[str, Any] | None
    """The finding about the first batch; see `core.premise`."""

    def write(self, folder: Path) -> None:
        """Write this record into the checkpoint in `folder`, after its buffer."""
        write_tensors(folder / BUFFER_FOLDER / KNOWN_FILE, vars(self))

    @classmethod
    def read(cls, folder: Path) -> ProcessKnowledge:
        """Read the record of the checkpoint in `folder`; an empty record if it has none.

        Raises:
            ValueError: the file cannot be read, or holds other values.
        """
        path = folder / BUFFER_FOLDER / KNOWN_FILE
        try:
            state = read_tensors(path)
            rollouts, premise = state["rollouts"], state["premise"]
            if not isinstance(rollouts, list) or not isinstance(premise, dict | None):
                raise TypeError(f"{KNOWN_FILE} has content that no run has written")
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
    """Restore the ledger of a checkpoint, and the pieces that can still be trained.

    `hold` turns the data of a piece into its payload.
    """
    ledger = read_ledger(folder)
    before, why = ledger.refused["lost at resume"], ""
    try:
        pieces, why = _usable(folder, version, settings)
        pieces_with_data = [replace(piece, payload=_read_payload(folder, piece, hold)) for piece in pieces]
    except (OSError, ValueError, KeyError, TypeError) as error:
        pieces_with_data, why = [], f"{BUFFER_FOLDER} cannot be read: {error}"
    pieces_again = buffer.restore(version, ledger, pieces_with_data)
    # Without this the gate would have these rollouts collected a second time.
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


def _before(batch: int, pieces: Sequence[Piece], ledger: Ledger) -> tuple[list[Piece], Ledger]:
    """Return the pieces for batches before `batch`, and the ledger as if only these had been produced."""
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
    """Return the pieces of whole rollouts that the run can still train, and why there are no others.

    The reason is "" if age is the only one. The payload of each piece is the name of its file.
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
        differences.remove("recomputes")  # pieces made for recomputation hold all that others hold
    if differences:
        return [], f"the run has other settings now ({', '.join(differences)})"
    pieces = [_piece(entry) for entry in entries]
    fresh = [piece for piece in pieces if _is_fresh(piece, version, settings)]
    return _of_whole_rollouts(fresh, settings.plan.parts), ""


def saved_plan(folder: Path) -> Mapping[str, Any] | None:
    """Return the plan of the run that wrote a checkpoint, as plain data; None if it is not known."""
    try:
        plan = read_json_file(folder / BUFFER_FOLDER / INDEX_FILE, limit=MAX_INDEX_BYTES)["run"]["plan"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return plan if isinstance(plan, dict) else None


def _is_fresh(piece: Piece, version: int, settings: RunSettings) -> bool:
    in_time = version <= piece.ticket.batch < settings.batches
    return in_time and piece.staleness <= settings.asynchrony.max_staleness


def _of_whole_rollouts(pieces: Sequence[Piece], parts: int) -> list[Piece]:
    """Return the pieces of rollouts with all their parts; other rollouts are collected again as a whole."""
    part_counts: Counter[Ticket] = Counter(piece.ticket for piece in pieces)
    return [piece for piece in pieces if part_counts[piece.ticket] == parts]


def _piece(entry: Mapping[str, Any]) -> Piece:
    """Return the piece of an entry of the index; its payload is the name of a file in the buffer.

    Raises:
        ValueError, KeyError, TypeError: `save_buffer` has not written this entry.
    """
    piece = Piece(**{**entry, "ticket": Ticket(**entry["ticket"])})
    # A checkpoint may come from another person: a name with a path would read a file outside the buffer.
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
    """Read the ledger of a checkpoint; an empty ledger if it has none, as checkpoints of a framework's own
    runs.

    Raises:
        ValueError: the file holds no ledger.
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
    """Write nested dicts (with string keys), lists and tuples of tensors, arrays, strings and numbers.

    Raises:
        TypeError: `value` holds another type.
        OSError: the disk is full, or the file cannot be written.
    """
    tensors: list[torch.Tensor] = []
    tree = json.dumps(_describe(value, tensors))
    try:
        save_file({str(n): tensor for n, tensor in enumerate(tensors)}, path, metadata={TREE_KEY: tree})
    except SafetensorError as error:  # the library's own class for system errors
        raise OSError(f"{path.name} cannot be written: {error}") from error


def read_tensors(path: Path) -> Any:
    """Read a value that `write_tensors` has written.

    Raises:
        OSError, ValueError: the file is missing, a link, not a regular file, cut off or damaged.
    """
    try:
        # By its descriptor: the file that was checked is read, even if another one is at the path by now.
        with opened(path) as number, safe_open(f"/proc/self/fd/{number}", framework="pt") as file:
            tree = json.loads((file.metadata() or {})[TREE_KEY])
            return _build(tree, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except OSError:
        # Unchanged: callers tell a missing file from a damaged one.
        raise
    except Exception as error:
        # safetensors, json and torch raise errors of many classes for a damaged file.
        raise ValueError(f"{path.name} cannot be read: {error}") from error


def _describe(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` as JSON, `[kind, content]`, with each tensor replaced by its index in `tensors`."""
    if isinstance(value, torch.Tensor):
        # A copy, as safetensors refuses tensors that share memory.
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
