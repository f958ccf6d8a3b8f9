"""Run directories that are damaged, foreign or hostile: no command ends in a traceback, waits, or writes out.

`RLINF_ASYNC_DAMAGED_RUNS=500` looks at so many; by default there are fewer, with the same seeds.
"""

import json
import os
import random
import signal
from contextlib import contextmanager

import pytest

from rlinf_async.lab.chaos.victims import victims
from rlinf_async.lab.plan.replay import replay
from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.trace.command import write_trace
from rlinf_async.observe.failures import count_failures, read_failures, record_failure
from rlinf_async.observe.stacks import stacks_of
from rlinf_async.observe.status import status_of
from rlinf_async.ray_runtime.checkpoint_folder import find_newest, written_aside
from tests.lab.report.making import write_run

RUNS = int(os.environ.get("RLINF_ASYNC_DAMAGED_RUNS", "60"))
LONGEST_S = 5.0
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)
ODD = [None, True, -1, 0, 10**400, 1e308, -1e300, float("nan"), float("inf"), "", "x" * 5000, [], [[]], {}]
ODD += [{"a": 1}, [1, "2", None], 2**63, "\ud800", "\x00", "<b>", [{"kind": []}], {"": {"": []}}, 1e-320]


def complete_run(tmp_path):
    run = write_run(tmp_path)
    processes = {"env worker 0": {"pid": os.getpid(), "machine": "m", "ended": 3, "open": []}, "x": None}
    processes["env worker 0"]["open"] = [{"kind": "step", "seconds": 1.0, "shard": 0}]
    status = {"time": 1.0, "driver": 1, "step": 1, "total": 3, "still_s": 0.0, "processes": processes}
    (run / "status.json").write_text(json.dumps(status))
    record_failure(run, process="env worker 0", what="env failed", error="E: no", action="again", seconds=1.0)
    with written_aside(run / "checkpoints" / "global_step_1", {"max_staleness": 1}) as aside:
        (aside / "weights").write_bytes(b"1234")
    return run


def changed(draw, tree):
    """Plain data with one value somewhere that is another, or not there."""
    if isinstance(tree, dict) and tree and draw.random() < 0.8:
        name = draw.choice(list(tree))
        if draw.random() < 0.2:
            return {key: value for key, value in tree.items() if key != name}
        return {**tree, name: changed(draw, tree[name])}
    if isinstance(tree, list) and tree and draw.random() < 0.7:
        at = draw.randrange(len(tree))
        return [*tree[:at], changed(draw, tree[at]), *tree[at + 1 :]]
    return draw.choice(ODD)


def as_json(draw, content):
    lines = []
    for line in content.decode(errors="replace").splitlines():
        try:
            tree = json.loads(line)
        except ValueError:
            return json.dumps(draw.choice(ODD)).encode()
        for _ in range(draw.randrange(4)):
            tree = changed(draw, tree)
        lines.append(json.dumps(tree))
    return ("\n".join(lines) + "\n").encode()


def whole_json(draw, content):
    try:
        tree = json.loads(content)
    except ValueError:
        return as_json(draw, content)
    for _ in range(1 + draw.randrange(4)):
        tree = changed(draw, tree)
    return json.dumps(tree).encode()


DAMAGES = {
    "cut off": lambda draw, content: content[: draw.randrange(len(content) + 1)],
    "flipped": lambda draw, content: bytes(
        byte ^ (1 << draw.randrange(8)) if draw.random() < 0.02 else byte for byte in content
    ),
    "values": whole_json,
    "lines": as_json,
    "deep": lambda draw, content: (
        draw.choice([b"[", b'{"a":', b"- ", b"{a: "]) * draw.choice([90, 3000, 99999])
    ),
    "bomb": lambda draw, content: draw.choice([BOMB, MERGES]).encode(),
    "itself": lambda draw, content: b"a: &a {b: *a, <<: *a}\n",
    "encoding": lambda draw, content: content.decode(errors="replace").encode(
        draw.choice(["utf-16", "utf-32"])
    ),
    "binary": lambda draw, content: draw.randbytes(draw.randrange(4000)),
    "dates": lambda draw, content: b"a: 2001-99-99\nb: !!python/object/apply:os.system [true]\n? [1]\n: 2\n",
    "numbers": lambda draw, content: b'{"step": ' + b"9" * 6000 + b', "time": 1e999, "pid": -1}\n',
    "nothing": lambda draw, content: b"",
}


def damage(draw, run, outside):
    files = sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    path = draw.choice(files)
    how = draw.choice([*DAMAGES, "pipe", "link", "loop", "directory", "gone", "stacks"])
    if how in DAMAGES:
        path.write_bytes(DAMAGES[how](draw, path.read_bytes()))
    elif how == "stacks":
        (run / "stacks").mkdir(exist_ok=True)
        (run / "stacks" / f"a-{draw.randrange(9**9)}.ask").symlink_to(outside)
    else:
        path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to(draw.choice([outside, "/dev/zero", "/dev/stdin", "/proc/self/mem"]))
    elif how == "loop":
        path.symlink_to(path)
    elif how == "directory":
        path.mkdir()
    return f"{how}: {path.name}"


@contextmanager
def within(seconds):
    def late(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


READERS = {
    "report": lambda run, out: write_report([run], out / "page.html"),
    "trace": lambda run, out: write_trace(run, out / "trace.json"),
    "status": lambda run, out: (status_of(run), list(stacks_of(run))),
    "plan": lambda run, out: replay(run),
    "chaos": lambda run, out: victims(run),
    "faults": lambda run, out: (read_failures(run), count_failures(run)),
    "resume": lambda run, out: find_newest(run / "checkpoints"),
}


@pytest.mark.parametrize("seed", range(0, RUNS, 10))
def test_no_reader_fails_waits_or_writes_out_of_a_damaged_run(tmp_path, seed):
    said = {}
    for one in range(seed, seed + 10):
        place = tmp_path / str(one)
        out = place / "out"
        out.mkdir(parents=True)
        outside = place / "outside"
        outside.write_text("all my work")
        draw, run = random.Random(one), complete_run(place)
        did = [damage(draw, run, outside) for _ in range(1 + draw.randrange(3))]
        for name, reader in READERS.items():
            try:
                with within(LONGEST_S):
                    reader(run, out)
            except ValueError as error:  # what a command ends with: a sentence
                said[one, name] = str(error)
            except Exception as error:  # noqa: BLE001  whatever it is, the seed and the damage tell more
                pytest.fail(f"{name} of run {one} ({'; '.join(did)}): {error!r}")
        assert outside.read_text() == "all my work"
        assert {path.name for path in place.iterdir()} == {"out", "outside", run.name}
    assert all(len(sentence.splitlines()) <= 5 for sentence in said.values()), said
