"""A command that is started again when it fails, from its newest whole checkpoint.

The supervisor lives on when memory is full or a library crashes: it imports neither torch nor Ray.
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
from rlinf_async.observe.ending import IGNORED_SIGNALS
from rlinf_async.observe.failures import record_failure
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import Newest, find_newest, sequence_of

CONFIG_ERROR = 2
"""The exit status of a run that could not begin."""
PASSED_ON = IGNORED_SIGNALS
FINAL_STATUSES = (0, CONFIG_ERROR, *(128 + number for number in PASSED_ON))
"""Exit statuses that are not tried again: the end is good, no run can begin, or a person has ended it."""
IN_VAIN = 2
"""Attempts in a row that got no further than any before: the next one would not either."""


@dataclass
class Progress:
    """The progress of the attempts of a run."""

    furthest: int = -1
    """The highest step that was ever trained."""
    in_vain: int = 0

    def note(self, attempt: Attempt | None) -> None:
        """Count an attempt that has ended."""
        metrics = RunDir(attempt.run_dir).read_metrics() if attempt else []
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
    """Run `command` until it ends for good, at most `restarts` times again, `wait_s` after each failure.

    It is run as it is, and with the override that it has announced (`observe.attempt`) once it has written a
    checkpoint. Signals that end a process are passed on to it. To be called in the main thread.

    Returns:
        Its last exit status; 128 and the number of the signal that has killed it.
    """
    progress = Progress()
    before: dict[str, int] = {}
    override: list[str] = []
    restart = 0
    with tempfile.TemporaryDirectory(prefix="rlinf-async-") as scratch, _passing_on() as child:
        while True:
            restart += 1
            # A file for each attempt: one that ends before it says anything has none.
            place = Path(scratch, str(restart))
            status = child.run([*command, *override], place)
            # A signal that was passed on ends it for good, with whatever status the run has answered.
            if status in FINAL_STATUSES or child.asked:
                return status
            attempt = read_attempt(place)
            progress.note(attempt)
            cause = _cause(attempt, status)
            if restart > restarts:
                say(f"it has failed {restart} times, and --restarts={restarts}: {cause}")
                return status
            if progress.in_vain == IN_VAIN:
                say(f"{IN_VAIN} attempts in a row have got no further, so there is no other: {cause}")
                return status
            newest = _newest(attempt, before)
            override = [attempt.resume] if attempt and newest.folder else []
            for sentence in newest.skipped:
                say(sentence)
            place_of = f"step {newest.step}" if newest.folder else "the beginning, as there is no checkpoint"
            say(f"restart {restart} of {restarts} from {place_of}, in {wait_s:g} s: {cause}")
            if child.wait_asked(wait_s):
                return 128 + child.asked


class _Child:
    """The process that is supervised, in a process group of its own."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = threading.Event()
        self.asked = 0
        """The number of the last signal that was passed on."""

    def run(self, command: Sequence[str], place: Path) -> int:
        """Start it, wait for its end, and end whatever it has left behind; its exit status."""
        environment = {**os.environ, PLACE_VARIABLE: str(place)}
        # A group of its own: what the run leaves behind ends with it, and an interrupt of the terminal comes
        # once, passed on by this process.
        self._process = process = subprocess.Popen(command, env=environment, process_group=0)
        try:
            status = process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._process = None
        # Popen tells a signal as its negative number, shells as 128 and the number.
        return status if status >= 0 else 128 - status

    def wait_asked(self, seconds: float) -> bool:
        """Wait; whether a signal has come meanwhile."""
        return self._heard.wait(seconds)

    def pass_on(self, number: int, _: object) -> None:
        self.asked = number
        self._heard.set()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


@contextmanager
def _passing_on() -> Iterator[_Child]:
    """A child to which signals are passed on in this block; ignored ones stay ignored."""
    child = _Child()
    before = {one: signal.getsignal(one) for one in PASSED_ON if signal.getsignal(one) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, child.pass_on)
    try:
        yield child
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _newest(attempt: Attempt | None, before: dict[str, int]) -> Newest:
    """The newest whole checkpoint that some attempt has written: older ones are another run's.

    `before` has the number of the newest of another run, by the folder, as the attempts there have said it.
    """
    if attempt is None:
        return Newest(None, 0, ())
    parent = Path(attempt.checkpoints)
    # Each attempt says it as it finds it: less, where what was there has been put aside meanwhile.
    others = min(attempt.newest, before.get(attempt.checkpoints, attempt.newest))
    before[attempt.checkpoints] = others
    newest = find_newest(parent)
    if newest.folder is not None and sequence_of(newest.folder) <= others:
        return Newest(None, 0, newest.skipped)
    return newest


def _cause(attempt: Attempt | None, status: int) -> str:
    """Why an attempt has ended: as its record has it, or else its exit status in words, which is recorded."""
    run_dir = Path(attempt.run_dir) if attempt else None
    records = attempt.faults() if attempt else []
    errors = [one["error"] for one in records if one["what"] == "run failed"]
    if errors:
        return str(errors[-1]).splitlines()[0]
    words = _in_words(status)
    if run_dir is not None and run_dir.is_dir():
        record_failure(run_dir, process="driver", what="run failed", error=words, action="the run ends")
    return words


def _in_words(status: int) -> str:
    if status > 128:
        with suppress(ValueError):
            return f"the run was ended by {signal.Signals(status - 128).name}"
    return f"the run has ended with status {status}"
