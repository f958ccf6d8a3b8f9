"""Restarts a failed command from its newest whole checkpoint.

The supervisor must survive a full memory and crashes of libraries: it imports neither torch nor Ray.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rlinf_async.observe.attempt import PLACE_VARIABLE, Attempt, read_attempt
from rlinf_async.observe.ending import CONFIG_ERROR, IGNORED_SIGNALS
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import Newest, find_newest, sequence_of

FORWARDED_SIGNALS = IGNORED_SIGNALS
FINAL_STATUSES = (0, CONFIG_ERROR, *(128 + number for number in FORWARDED_SIGNALS))
"""Exit statuses without a restart: the run is done, cannot begin, or was ended by the user."""
MAX_IN_VAIN = 2
"""Attempts in a row without progress after which there is no restart."""


@dataclass
class Progress:
    """The progress of the attempts of a run."""

    furthest: int = -1
    """The highest step that any attempt has trained."""
    in_vain: int = 0
    """The last attempts in a row that trained no higher step."""

    def note(self, attempt: Attempt | None) -> None:
        """Count an attempt that has ended."""
        metrics = RunReader(attempt.run_dir).metrics() if attempt else []
        step = max((int(line["step"]) for line in metrics), default=-1)
        self.in_vain = 0 if step > self.furthest else self.in_vain + 1
        self.furthest = max(step, self.furthest)


def supervise(
    command: Sequence[str],
    *,
    restarts: int,
    wait_s: float,
    say: Callable[[str], None],
) -> int:
    """Run `command` until it ends for good, with at most `restarts` restarts, `wait_s` after each failure.

    Once the command has written a checkpoint, restarts add the override that it has announced
    (`observe.attempt`). Signals that end a process are forwarded to it. Call it in the main thread.

    Returns:
        The last exit status of the command; 128 plus the number of the signal that has killed it.
    """
    progress = Progress()
    before: dict[str, int] = {}
    override: list[str] = []
    restart = 0
    with tempfile.TemporaryDirectory(prefix="rlinf-async-") as scratch, _forwarding() as child:
        while True:
            restart += 1
            # A file per attempt, as an attempt that ends early writes none.
            place = Path(scratch, str(restart))
            status = child.run([*command, *override], place)
            # After a forwarded signal there is no restart, whatever the exit status.
            if status in FINAL_STATUSES or child.signal_number:
                return status
            attempt = read_attempt(place)
            progress.note(attempt)
            cause = _cause(attempt, status)
            if restart > restarts:
                say(f"it has failed {restart} times, and --restarts={restarts}: {cause}")
                return status
            if progress.in_vain == MAX_IN_VAIN:
                say(f"{MAX_IN_VAIN} attempts in a row have got no further, so there is no other: {cause}")
                return status
            newest = _newest(attempt, before)
            override = [attempt.resume] if attempt and newest.folder else []
            for sentence in newest.skipped:
                say(sentence)
            place_of = f"step {newest.step}" if newest.folder else "the beginning, as there is no checkpoint"
            say(f"restart {restart} of {restarts} from {place_of}, in {wait_s:g} s: {cause}")
            if child.wait_for_signal(wait_s):
                return 128 + child.signal_number


class _Child:
    """The supervised process, in a process group of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._got_signal = threading.Event()
        self.signal_number = 0
        """The number of the last forwarded signal; 0 before any."""

    def run(self, command: Sequence[str], place: Path) -> int:
        """Start the process, wait for its end, kill the processes that it leaves behind; return its
        status."""
        environment = {**os.environ, PLACE_VARIABLE: str(place)}
        # A process group of its own: so its processes can be killed together, and an interrupt of the
        # terminal arrives once, forwarded by this process.
        self._process = process = subprocess.Popen(command, env=environment, process_group=0)
        try:
            status = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None
        # Popen returns the negative number of a signal, shells return 128 plus the number.
        return status if status >= 0 else 128 - status

    def wait_for_signal(self, seconds: float) -> bool:
        """Wait at most `seconds`; return True if a signal has arrived, at once if one had before."""
        return self._got_signal.wait(seconds)

    def forward(self, number: int, _: object) -> None:
        self.signal_number = number
        self._got_signal.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


@contextmanager
def _forwarding() -> Iterator[_Child]:
    """Forward signals to the child inside the block; ignored signals stay ignored."""
    child = _Child()
    before = {
        one: signal.getsignal(one) for one in FORWARDED_SIGNALS if signal.getsignal(one) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, child.forward)
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _newest(attempt: Attempt | None, before: dict[str, int]) -> Newest:
    """The newest whole checkpoint that an attempt of this run has written; older ones are of another run.

    `before` has, by folder, the number of the newest checkpoint of another run, as the attempts announced it.
    """
    if attempt is None:
        return Newest(None, 0, ())
    parent = Path(attempt.checkpoints)
    # Each attempt announces the number at its start: it is lower if checkpoints were put aside meanwhile.
    others = min(attempt.newest, before.get(attempt.checkpoints, attempt.newest))
    before[attempt.checkpoints] = others
    newest = find_newest(parent)
    if newest.folder is not None and sequence_of(newest.folder) <= others:
        return Newest(None, 0, newest.skipped)
    return newest


def _cause(attempt: Attempt | None, status: int) -> str:
    """The cause of an attempt's end: from its record of faults, else its exit status in words, which is
    recorded."""
    run_dir = Path(attempt.run_dir) if attempt else None
    records = attempt.faults() if attempt else []
    errors = [fault.error for fault in records if fault.what == "run failed"]
    if errors:
        return errors[-1].splitlines()[0]
    words = _in_words(status)
    if run_dir is not None and run_dir.is_dir():
        fault = Fault(process="driver", what="run failed", error=words, action="the run ends")
        RunDir(run_dir).record(fault)
    return words


def _in_words(status: int) -> str:
    if status > 128:
        with suppress(ValueError):
            return f"the run was ended by {signal.Signals(status - 128).name}"
    return f"the run has ended with status {status}"
