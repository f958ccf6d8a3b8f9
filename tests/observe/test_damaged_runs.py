"""Run directories that are damaged, foreign or hostile: no command ends in a traceback, waits, or writes out.

`RLINF_ASYNC_DAMAGED_RUNS=500` looks at so many; by default there are fewer, with the same seeds.
"""

import copy
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async import cli
from rlinf_async.cli import arguments
from rlinf_async.compose import compose_config
from rlinf_async.core.admission import AdmissionGate
from rlinf_async.core.buffer import TrajectoryBuffer
from rlinf_async.hosts.rlinf.checkpoints import resume_step
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.lab.plan import command as plan_command
from rlinf_async.lab.plan.command import Comparison
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.observe.ending import RunFailed, ending_of
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import identity
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import written_aside
from rlinf_async.ray_runtime.checkpoints.saved_buffer import ProcessKnowledge, resume_buffer
from rlinf_async.termination import TERMINATION
from rlinf_async.wire.memory import machine
from tests.lab.plan.given import left_by
from tests.lab.report.making import write_run
from tests.ray_runtime.checkpoints.test_saved_buffer import SETTINGS, THREE, saved

RUNS = int(os.environ.get("RLINF_ASYNC_DAMAGED_RUNS", "40"))
LONGEST_S = 5.0
MOST_LINES = 5
EXPERIMENT = "mine"
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


class Late(BaseException):
    """A command has not ended in time; nothing of ours takes it for an error of its own."""


def complete_run(draw, place, templates, child):
    """The directory of a run that goes on, with a checkpoint, which its damage may have preceded."""
    run = place / "run"
    shutil.copytree(templates[draw.randrange(len(templates))], run)
    processes = {"env worker 0": {**child, "machine": machine(), "ended": 3, "open": []}, "x": None}
    processes["env worker 0"]["open"] = [{"kind": "step", "seconds": 1.0, "shard": 0}]
    status = {"time": time.time(), "driver": 1, "step": 1, "total": 3, "still_s": 0.0, "processes": processes}
    (run / "status.json").write_text(json.dumps(status))
    if draw.random() < 0.5:
        (run / "summary.json").unlink()
    RunDir(run).record(
        Fault(process="env worker 0", what="env failed", error="E: no", action="again", seconds=1.0)
    )
    with written_aside(run / EXPERIMENT / "checkpoints" / "global_step_3", {"max_staleness": 1}) as aside:
        (aside / "actor").mkdir()
        (aside / "actor" / "weights").write_bytes(b"1234")
        state = saved(place / "state", *THREE)
        ProcessKnowledge([{}], None).write(state)
        shutil.copytree(state, aside, dirs_exist_ok=True)
        shutil.rmtree(state)
        if draw.random() < 0.3:
            file = draw.choice(sorted(path for path in aside.rglob("*") if path.is_file()))
            file.write_bytes(DAMAGES[draw.choice(list(DAMAGES))](draw, file.read_bytes()))
    return run


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """Two runs: one whose every number is known, and one that can be planned."""
    place = tmp_path_factory.mktemp("runs")
    return write_run(place), left_by(place / "planned")


@pytest.fixture(scope="module")
def child():
    """A process that is nobody's business, as a run directory would name it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield {"pid": process.pid, **identity(process.pid)}
        assert process.poll() is None
        process.communicate(b"\n")


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


def magnified(draw, content):
    """Numbers of another size, which a file can name at no cost."""
    text = content.decode(errors="replace")
    places = [match for match in re.finditer(r"(?<![\w.])[1-9]\d*", text)]
    for match in sorted(draw.sample(places, min(len(places), 2)), key=lambda match: -match.start()):
        text = text[: match.start()] + match[0] + "0" * draw.choice([1, 3, 6, 9, 14]) + text[match.end() :]
    return text.encode()


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
    "sizes": magnified,
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
    how = draw.choice([*DAMAGES, "pipe", "link", "loop", "directory", "gone", "stacks", "lock", "folder"])
    if how in DAMAGES:
        path.write_bytes(DAMAGES[how](draw, path.read_bytes()))
    elif how == "stacks":
        (run / "stacks").mkdir(exist_ok=True)
        (run / "stacks" / f"a-{draw.randrange(9**9)}.ask").symlink_to(outside / "work")
    elif how == "lock":
        (run / ".lock").unlink(missing_ok=True)
        (run / ".lock").symlink_to(outside / "work")
    elif how == "folder":
        folder = draw.choice([run / "trace", run / EXPERIMENT, run / EXPERIMENT / "checkpoints"])
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
            folder.symlink_to(outside)
    else:
        path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to(draw.choice([outside / "work", "/dev/zero", "/dev/stdin", "/proc/self/mem"]))
    elif how == "loop":
        path.symlink_to(path)
    elif how == "directory":
        path.mkdir()
    return f"{how}: {path.name}"


@contextmanager
def within(seconds):
    """So many seconds of the processor; and ten times as many of waiting, however busy the machine is."""

    def late(number, frame):
        raise Late(f"more than {seconds:g} s" if number == signal.SIGPROF else "it waits")

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, 10 * seconds),
    }
    before = {number: signal.signal(number, late) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


COMMANDS = {
    "report": lambda run, out: ["report", str(run), "-o", str(out / "page.html")],
    "trace": lambda run, out: ["trace", str(run)],
    "status": lambda run, out: ["status", str(run), "--stacks"],
    "status as plain data": lambda run, out: ["status", str(run), "--json"],
    "plan": lambda run, out: ["plan", str(run), "--output", str(out / "plan")],
    "resume": lambda run, out: ["train", "of_test", f"runner.logger.log_path={run}"],
}


def planned_once(job, times, tries):
    """The run as it is alone: how long other settings take to plan is not a matter of damage."""
    now = foresee("now", job.settings, times, draws=1)
    return Comparison(now=now, others=())


def gone_on(host, cfg, dashboard):
    """What a run does with a checkpoint before Ray has anything to do: that of its coordinator, too."""
    folder = cfg.runner.get("resume_dir")
    if not resume_step(folder, digests=False):
        return
    plan = SETTINGS.plan
    buffer = TrajectoryBuffer(pieces_per_rank=plan.pieces_per_rank, max_staleness=2)
    gate = AdmissionGate(shards=plan.shards, epochs=1, max_staleness=2, until=SETTINGS.batches, version=3)
    try:
        resume_buffer(Path(folder), 3, gate, buffer, SETTINGS, lambda data: [data])
        buffer.ledger.check(buffer.held())
        ProcessKnowledge.read(Path(folder))
    except ValueError as error:
        raise RunFailed(ending_of(error), trace=None) from error


@pytest.fixture
def commands(monkeypatch):
    """The command line, without other settings to plan, and without what only a run that has begun does."""
    cfg = compose_config("metaworld_ppo_mlp", ["~warm_start"])
    cfg.runner.logger.experiment_name = EXPERIMENT

    def composed(name, directory, *, overrides):
        changed_cfg = copy.deepcopy(cfg)
        changed_cfg.runner.logger.log_path = overrides[0].partition("=")[2]
        changed_cfg.runner.resume_dir = "auto"
        return changed_cfg

    killed: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "kill", lambda *signalled: killed.append(signalled))
    monkeypatch.setattr(arguments.Chosen, "place", ("of_test", None))
    monkeypatch.setattr(arguments, "compose", composed)
    monkeypatch.setattr(RLinfHost, "train", gone_on)
    monkeypatch.setattr(TERMINATION, "install", lambda: None)
    monkeypatch.setattr(plan_command, "compare", planned_once)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    yield
    assert killed == []


def ended(name, words, *, seconds=LONGEST_S):
    """The exit status of a command that has ended while its reader waits, with a few lines at most."""
    with within(seconds):
        result = CliRunner().invoke(cli.app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    allowed = (0, 1, 2) if name in ("plan", "resume") else (0, 2)  # doubtful, failed
    assert result.exit_code in allowed, result.output
    if result.exit_code and name != "plan":
        assert result.stderr.startswith("error: "), result.output
        assert len(result.stderr.splitlines()) <= MOST_LINES, result.output
    return result.exit_code


INTACT: dict[str, int] = {}
"""The exit status of each command on a run that is not damaged."""


@pytest.fixture
def imported(tmp_path, templates, child, commands):
    """All that the commands import, once, which takes longer than they do; they work on an intact run."""
    if not INTACT:
        draw = random.Random(0)
        draw.random = lambda: 1.0  # no damage before the list of a checkpoint is written
        draw.randrange = lambda count: count - 1
        run = complete_run(draw, tmp_path, templates, child)
        INTACT.update(
            {name: ended(name, words(run, tmp_path), seconds=300) for name, words in COMMANDS.items()}
        )
    assert set(INTACT.values()) == {0}


@pytest.mark.timeout(0 if RUNS > 60 else 600)
@pytest.mark.parametrize("seed", range(0, RUNS, 10))
def test_no_command_fails_waits_or_writes_out_of_a_damaged_run(tmp_path, seed, templates, child, imported):
    for one in range(seed, seed + 10):
        place = tmp_path / str(one)
        out, outside = place / "out", place / "outside"
        out.mkdir(parents=True)
        unfinished = outside / ".global_step_1.writing"
        unfinished.mkdir(parents=True)
        (unfinished / "work").write_text("unfinished")
        (outside / "work").write_text("all my work")
        draw = random.Random(one)
        run = complete_run(draw, place, templates, child)
        did = [damage(draw, run, outside) for _ in range(1 + draw.randrange(3))]
        for name, words in COMMANDS.items():
            try:
                ended(name, words(run, out))
            except (Exception, Late) as error:  # noqa: BLE001  the seed and the damage tell more
                pytest.fail(f"{name} of run {one} ({'; '.join(did)}): {error!r}")
        assert (outside / "work").read_text() == "all my work", did
        assert (unfinished / "work").read_text() == "unfinished", did
        assert sorted(path.name for path in outside.rglob("*")) == [unfinished.name, "work", "work"], did
        assert {path.name for path in place.iterdir()} == {"out", "outside", "run"}, did
