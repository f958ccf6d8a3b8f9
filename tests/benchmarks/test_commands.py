"""Benchmarks that pages name run, each in a copy of its folder: its committed results must not change."""

import importlib
import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
)
NAMED = re.compile(r"python -m benchmarks\.[\w.]+(?: (?!is\b|and\b)[\w./,=-]+)*")
FORK = multiprocessing.get_context("fork")
RUN_TIMEOUT_S = 570
"""No command takes as long at its smallest size, on two cores that are shared."""


def _without(name: str, *gone: str) -> Callable[[Path], None]:
    """A change of the copy: results of these names are missing, so that they are measured again."""

    def change(folder: Path) -> None:
        file = folder / "benchmarks" / name
        results = json.loads(file.read_text())
        left = {key: found for key, found in results.items() if key not in gone}
        assert len(results) - len(left) == len(gone), f"{name} has not {gone}"
        file.write_text(json.dumps(left))

    return change


def _without_file(name: str) -> Callable[[Path], None]:
    """The same, of a result that is a file."""
    return lambda folder: (folder / "benchmarks" / name).unlink()


@dataclass(frozen=True)
class Smallest:
    """The commands of pages that `pattern` matches whole, and the smallest of their kind."""

    pattern: str
    arguments: str
    change: Callable[[Path], None] | None = None
    nightly: bool = False
    """Takes minutes, a cluster or both."""


def _stored(name: str, options: str = "", *, nightly: bool = False) -> Smallest:
    """A benchmark whose committed results are complete: it reads and shows them, and measures nothing."""
    return Smallest(rf"{re.escape(name)}( --?[\w=. -]+)?", f"{name} {options}".strip(), nightly=nightly)


COMMANDS = (
    Smallest(r"micro core.*", "micro core --rounds 1 --shards 4"),
    Smallest(r"micro brokers.*", "micro brokers --rounds 1 --shards 4"),
    Smallest(r"micro channels.*", "micro channels --rounds 1", nightly=True),
    Smallest(r"micro takes.*", "micro takes --rounds 1", nightly=True),
    Smallest(r"micro copies.*", "micro copies --rounds 1"),
    Smallest(r"micro spans.*", "micro spans --rounds 1"),
    Smallest(r"micro threads.*", "micro threads --rounds 1", nightly=True),
    Smallest(r"micro steps.*", "micro steps --rounds 1"),
    Smallest(r"micro rewards.*", "micro rewards --rounds 1 --shards 1"),
    Smallest(r"micro differences.*", "micro differences --rounds 1 --rates 1"),
    Smallest(r"micro ratios.*", "micro ratios --rounds 1", nightly=True),
    Smallest(r"micro requests.*", "micro requests --rounds 1", nightly=True),
    Smallest(r"micro rollouts.*", "micro rollouts --rounds 1", nightly=True),
    Smallest(r"micro pictures.*", "micro pictures --rounds 1 --environments 2", nightly=True),
    Smallest(r"micro start.*", "micro start --rounds 1", nightly=True),
    Smallest(r"micro weights.*", "micro weights --rounds 1", nightly=True),
    _stored("schedules.hosts"),
    _stored("schedules.held_out", "--scenario libero"),
    _stored("schedules.shards", "--table"),
    _stored("schedules.beside", "--report"),
    _stored("schedules.no_work", "--report"),
    _stored("learning equivalence", nightly=True),
    _stored("learning staleness", nightly=True),
    _stored("learning preregistered", "--report"),
    _stored("learning corrections", "--report"),
    _stored("learning peers", "--report"),
    _stored("learning verl", "--report"),
    _stored("learning report"),
    Smallest(r"learning evidence", "learning evidence"),
    Smallest(r"learning\.flow_gradient", "learning.flow_gradient"),
    _stored("learning.tasks"),
    _stored("learning.flow", "--report"),
    _stored("learning.group_scene", "--report"),
    _stored("learning.causes", "--report"),
    _stored("learning.confirm", "--report"),
    _stored("learning.confirm_pi0", "--report"),
    _stored("learning.pi0", "--report"),
    _stored("learning.singles", "--report"),
    _stored("learning.pictures", "--report"),
    _stored("chaos"),
    _stored("chaos.driver"),
    _stored("chaos.faulty", "--report"),
    _stored("chaos.learning", "--report"),
    _stored("chaos.places"),
    _stored("chaos.silence"),
    _stored("chaos.soak", "--report"),
    _stored("long_runs"),
    Smallest(
        r"chaos\.saving", "chaos.saving --times 2", _without("chaos/saving.json", "seed 0"), nightly=True
    ),
    Smallest(r"chaos\.effective.*", "chaos.effective --faults 1 --every 20", nightly=True),
    Smallest(r"gpu\.frames.*", "gpu.frames --gl osmesa --quick --cases metaworld", nightly=True),
    Smallest(r"gpu\.shares.*", "gpu.shares --device cpu"),
    Smallest(r"gpu.*", "gpu --device cpu --params 100000 --quick", nightly=True),
    Smallest(r"newcomer", "newcomer", nightly=True),
    Smallest(
        r"dead_work\.frames (metaworld|libero|maniskill) .*",
        "dead_work.frames metaworld --chunk 2 --size 64 --decisions 1 --turns 1",
        nightly=True,
    ),
    Smallest(
        r"dead_work\.standing (metaworld|libero).*",
        "dead_work.standing metaworld --frames last",
        nightly=True,
    ),
    _stored("dead_work.learning", "--report"),
    _stored("dead_work.learning_on_rlinf", "--report"),
    Smallest(r"dead_work\.demo.*", "dead_work.demo benchmarks/dead_work/results/demo.json"),
    Smallest(r"dead_work\.shards.*", "dead_work.shards --success 0.5", nightly=True),
    Smallest(r"dead_work\.runs.*", "dead_work.runs --report"),
    Smallest(r"dead_work\.balance", "dead_work.balance"),
    _stored("nodes", "--report"),
    Smallest(r"off_policy\.ideal", "off_policy.ideal"),
    Smallest(r"off_policy emulated", "off_policy --report"),
)
OF_ROWS = tuple(f"learning.{name}" for name in ("causes", "flow", "pi0", "pictures", "singles"))
"""Experiments whose page is written from their rows, and so not by hand."""
MEASURES = (
    ("chaos --steps 8 --every 10 --repetitions 1", None),
    ("chaos.driver", _without("chaos/driver.json", "2 kills, seed 1")),
    ("chaos.faulty", _without("chaos/faulty.json", "no restarts")),
    ("chaos.learning", _without("chaos/learning.json", "killed every 5 steps, seed 0")),
    ("chaos.places", _without("chaos/places.json", "a checkpoint, the disk is full")),
    ("chaos.silence", _without("chaos/silence.json", "simulator")),
    ("chaos.soak --steps 100", None),
    ("schedules.hosts --repetitions 1 --steps 3 --at-most 1", _without_file("schedules/hosts.json")),
    (
        "learning staleness",
        _without_file("learning/results/raw/local-ppo-button-press-topdown-v3-30-lag1-decoupled-seed0.json"),
    ),
    (
        "learning corrections",
        _without_file("learning/results/preregistered/correction-lag1-decoupled-seed0.json"),
    ),
    (
        "learning preregistered --only grpo-4-lag1",
        _without_file("learning/results/preregistered/grpo-4-lag1-seed0.json"),
    ),
)
"""Commands of benchmarks that keep results, and one result of each that is measured anew."""


def named_by_pages() -> set[str]:
    """What stands behind `python -m benchmarks.` on some page."""
    text = "\n".join(page.read_text() for page in PAGES)
    return {match[0].removeprefix("python -m benchmarks.") for match in NAMED.finditer(text)}


@pytest.fixture(scope="module")
def imported():
    """What most benchmarks import, for the forks of this process: it takes longer than they do."""
    for name in (
        "torch",
        "scipy.stats",
        "benchmarks.learning.preregistered_run",
        "rlinf_async.ray_runtime.driver.run",
    ):
        with suppress(ImportError):
            importlib.import_module(name)


def test_pages_name_benchmarks():
    assert len(named_by_pages()) > 20


@pytest.mark.parametrize("command", sorted(named_by_pages()))
def test_every_benchmark_that_a_page_names_has_a_smallest_size_that_runs(command):
    assert [one.arguments for one in COMMANDS if re.fullmatch(one.pattern, command)], (
        f"nothing runs python -m benchmarks.{command}: add it to COMMANDS"
    )


@pytest.mark.parametrize(
    "smallest",
    [
        pytest.param(one, id=one.arguments, marks=[pytest.mark.nightly] if one.nightly else [])
        for one in COMMANDS
    ],
)
def test_a_benchmark_runs_at_its_smallest_size(smallest, tmp_path, imported):
    copy = run(smallest.arguments, smallest.change, tmp_path)
    if (name := smallest.arguments.removesuffix(" --report")) in OF_ROWS:
        page = Path("benchmarks", "learning", "results", f"{name.removeprefix('learning.')}.md")
        assert (copy / page).read_text() == (ROOT / page).read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(("arguments", "change"), MEASURES, ids=lambda value: str(value)[:40])
def test_a_benchmark_measures_what_has_no_result_yet(arguments, change, tmp_path, imported):
    run(arguments, change, tmp_path)


def run(arguments: str, change: Callable[[Path], None] | None, folder: Path) -> Path:
    """`python -m benchmarks.` and `arguments`, in a copy that `change` has changed; return the copy."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a checkout")
    copy, output = folder / "copy", folder / "output"
    if arguments == "newcomer":  # it clones the checkout that it stands in
        subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
    else:
        for name in ("benchmarks", "docs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    if change is not None:
        change(copy)
    process = FORK.Process(target=become, args=(arguments.split(), copy, output))
    process.start()
    try:
        process.join(RUN_TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
    assert process.exitcode == 0, output.read_text()[-4000:]
    return copy


def become(words: list[str], copy: Path, output: Path) -> None:
    """Be `python -m benchmarks.` in `copy` from now on: this is a fork that has what all of them import."""
    os.setsid()
    signal.setitimer(signal.ITIMER_REAL, 0)  # pytest's limit
    os.chdir(copy)
    os.environ |= {"RAY_ADDRESS": "local", "PYTHONPATH": f"{copy}{os.pathsep}{ROOT}"}
    written = os.open(output, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(written, number)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 as long as the process
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    sys.argv = words
    runpy.run_module(f"benchmarks.{words[0]}", run_name="__main__", alter_sys=True)
