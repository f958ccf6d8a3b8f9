"""What docs/security.md says: what the package may do, what a run leaves behind, and who can read it."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.trace import write_trace
from rlinf_async.observe.events import Status
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.reading.status import status_of
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import SpanLog
from rlinf_async.observe.stacks import answer_for_stacks
from rlinf_async.wire.memory import MemoryFile, Pickled
from tests.lab.report.making import CONFIG, FACTS, SUMMARY, TRACE, metrics, write_run

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "rlinf_async"

UNPICKLES = "reads pickle"
STARTS = "starts processes"
BY_NAME = "imports what it is told"
LISTENS = "uses a network"
RUNS_TEXT = "runs text as code"
WRITES = "writes files"
CHANGES = "makes, moves or deletes"
ALLOWED = {
    "wire/connection.py": {UNPICKLES, LISTENS},
    "wire/strangers.py": {LISTENS},
    "wire/payloads.py": {UNPICKLES},
    "ray_runtime/processes/flat_requests.py": {UNPICKLES},
    "wire/shown_memory.py": {UNPICKLES},
    "wire/memory.py": {UNPICKLES},
    "ray_runtime/cluster/environment.py": {LISTENS, WRITES, CHANGES},
    "ray_runtime/checkpoints/saved_buffer.py": {WRITES, CHANGES},
    "ray_runtime/cluster/template.py": {LISTENS, STARTS},
    "ray_runtime/cluster/idle_agent.py": {WRITES, CHANGES},
    "ray_runtime/cluster/start_worker.py": {LISTENS},
    "ray_runtime/cluster/worker_template.py": {LISTENS, STARTS, WRITES, BY_NAME},
    "hosts/rlinf/worker_imports.py": {BY_NAME},
    "ray_runtime/processes/forking.py": {STARTS},
    "lab/demo/simulators/child_process.py": {UNPICKLES, STARTS, BY_NAME},
    "lab/demo/simulators/metaworld_task.py": {UNPICKLES},
    "lab/demo/simulators/camera.py": {BY_NAME},
    "lab/process.py": {STARTS, WRITES},
    "lab/emulated/service.py": {WRITES},
    "lab/sweep/plan.py": {WRITES},
    "lab/sweep/cell.py": {CHANGES},
    "lab/bench/cell.py": {CHANGES},
    "lab/demo/warm_start.py": {CHANGES},
    "lab/demo/simulators/libero.py": {CHANGES},
    "ray_runtime/checkpoints/checkpoint_folder.py": {CHANGES},
    "observe/probes.py": {STARTS},
    "observe/forking.py": {STARTS, CHANGES},
    "observe/claim.py": {WRITES},
    "observe/spans.py": {WRITES, CHANGES},
    "observe/files.py": {WRITES, CHANGES},
    "observe/run_dir.py": {WRITES, CHANGES},
    "observe/stacks.py": {WRITES, CHANGES},
    "observe/reading/stacks.py": {WRITES},
    "hosts/local/whole_process.py": {LISTENS, WRITES},
    "supervise.py": {STARTS, CHANGES},
    "hosts/rlinf/borrowed.py": {BY_NAME},
    "hosts/rlinf/late_imports.py": {BY_NAME},
    "hosts/rlinf/managers.py": {BY_NAME},
    "hosts/rlinf/worker_process.py": {BY_NAME},
    "cli/application.py": {BY_NAME},
    "termination.py": {WRITES},
    "configs.py": {BY_NAME},
    "plugin.py": {BY_NAME},
    "hosts/host.py": {BY_NAME},
    "hosts/local/__init__.py": {BY_NAME},
    "hosts/rlinf/replacements.py": {BY_NAME},
    "hosts/rlinf/worker_groups.py": {BY_NAME},
    "hosts/verl/trials.py": {BY_NAME},
    "hosts/verl/defaults.py": {UNPICKLES},
    "hosts/rlinf/checkout.py": {UNPICKLES},
    "hosts/verl/verl_vla/env.py": {BY_NAME},
    "hosts/verl/verl_vla/policy.py": {BY_NAME},
    "hosts/verl/verl_vla/sections.py": {BY_NAME},
    "loops/foreign.py": {UNPICKLES},
}
"""All places in the package that do something of the kind; docs/security.md says why each of them does."""

NAME_METHODS = (
    *(".mkdir", ".touch", ".symlink_to", ".hardlink_to", ".rename", ".unlink", ".rmdir", ".chmod"),
    *(".rmtree", ".makedirs", ".mkdtemp", ".TemporaryDirectory"),
)
"""What changes the names in a folder, or their modes, by a method of a path or a function of a module."""

MODULES = {
    **dict.fromkeys(("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"), UNPICKLES),
    **dict.fromkeys(("multiprocessing", "subprocess", "pty"), STARTS),
    **dict.fromkeys(("socket", "socketserver", "ssl", "http", "urllib", "requests", "httpx"), LISTENS),
    **dict.fromkeys(("aiohttp", "ftplib", "smtplib", "xmlrpc", "zmq", "grpc", "websockets"), LISTENS),
    **dict.fromkeys(("runpy", "code", "codeop"), RUNS_TEXT),
}
CALLS = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__"), RUNS_TEXT),
    **dict.fromkeys(("os.system", "os.popen", "os.posix_spawn", "os.fork"), STARTS),
    **dict.fromkeys(("yaml.load", "yaml.full_load", "yaml.unsafe_load"), UNPICKLES),
    **dict.fromkeys(
        ("asyncio.start_server", "asyncio.start_unix_server", "asyncio.open_connection"), LISTENS
    ),
    **dict.fromkeys(("tempfile.mkstemp", "mkstemp", "NamedTemporaryFile", "TemporaryFile"), WRITES),
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"), WRITES),
    **dict.fromkeys(("os.write", "os.truncate", "os.mkfifo", "os.mknod", "os.link"), WRITES),
    **dict.fromkeys(("save_file", "safetensors.torch.save_file"), WRITES),
    **dict.fromkeys(("os.rename", "os.renames", "os.replace", "os.remove", "os.removedirs"), CHANGES),
    **dict.fromkeys(("os.symlink", "os.fchmod", "os.utime", "shutil.move", "shutil.chown"), CHANGES),
    **dict.fromkeys(("mkdtemp", "TemporaryDirectory", "rmtree", "makedirs"), CHANGES),
    **dict.fromkeys(("import_module", "importlib.import_module", "module_from_spec"), BY_NAME),
}


def uses(source: str) -> Iterator[str]:
    """What a module does that docs/security.md has to name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            yield from (MODULES[name.split(".")[0]] for name in names if name.split(".")[0] in MODULES)
            if "multiprocessing.connection" in names:
                yield UNPICKLES
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    called, given = ast.unparse(node.func), {key.arg: ast.unparse(key.value) for key in node.keywords}
    if called in CALLS:
        yield CALLS[called]
    if writes(called, node, given):
        yield WRITES
    if called.endswith(NAME_METHODS) or (called.endswith(".replace") and len(node.args) == 1 and not given):
        yield CHANGES  # a text has two arguments to be replaced
    if called.endswith("torch.load") and given.get("weights_only") != "True":
        yield UNPICKLES
    if called.endswith(".exec_module"):
        yield BY_NAME
    if given.get("allow_pickle", "False") != "False":
        yield UNPICKLES
    if given.get("shell", "False") != "False":
        yield RUNS_TEXT


IN_MEMORY = re.compile("io.BytesIO|content|policy|buffer")
"""Names in the package of what a library writes into that would write a file by itself."""
DUMPS = (
    *("torch.save", "np.save", "np.savez", "np.savez_compressed", "numpy.save", "numpy.savez"),
    *("json.dump", "pickle.dump", "yaml.dump", "yaml.safe_dump", "gzip.open", "zipfile.ZipFile"),
)


def writes(called: str, node: ast.Call, given: dict[str, str]) -> bool:
    """Whether a call opens a file to write, or gives a file its content by itself."""
    arguments = [ast.unparse(argument) for argument in node.args]
    if called.endswith((".write_text", ".write_bytes", ".tofile", ".to_csv", ".to_parquet")):
        return True
    if called in ("os.open", "opened", "open_regular"):
        return any(flag in " ".join(arguments) for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND"))
    if called in ("open", "io.open", "os.fdopen") or called.endswith(".open"):
        mode = given.get("mode", " ".join(argument for argument in arguments if argument[0] in "\"'"))
        return any(letter in mode.split("/")[-1].strip("'\"") for letter in "wax+") and len(mode) <= 6
    if called in DUMPS:
        # Some give a text where they are given nothing to write to.
        place = arguments[1:2] if called.startswith(("json", "pickle", "yaml")) else arguments
        at = place[-1] if called == "torch.save" else place[0] if place else given.get("stream", "")
        return bool(at) and not IN_MEMORY.fullmatch(at)
    return False


def test_nothing_unpickles_listens_or_runs_text_but_where_the_page_says_why():
    found = {
        path.relative_to(PACKAGE).as_posix(): kinds
        for path in sorted(PACKAGE.rglob("*.py"))
        if (kinds := set(uses(path.read_text())))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import cloudpickle", UNPICKLES),
        ("def f():\n    from pickle import loads", UNPICKLES),
        ("torch.load(path)", UNPICKLES),
        ("torch.load(path, weights_only=False)", UNPICKLES),
        ("numpy.load(path, allow_pickle=True)", UNPICKLES),
        ("yaml.unsafe_load(text)", UNPICKLES),
        ("import socket", LISTENS),
        ("path.write_text(text)", WRITES),
        ("path.with_suffix('.half').write_bytes(content)", WRITES),
        ("open(path, 'w')", WRITES),
        ("path.open('ab')", WRITES),
        ("path.open(mode='r+')", WRITES),
        ("os.fdopen(number, 'w')", WRITES),
        ("os.open(path, os.O_WRONLY | os.O_TRUNC)", WRITES),
        ("torch.save(state, path)", WRITES),
        ("torch.save(state, folder / 'policy.pt')", WRITES),
        ("np.savez(path, mean=mean)", WRITES),
        ("json.dump(tree, file)", WRITES),
        ("yaml.safe_dump(tree, file)", WRITES),
        ("shutil.copy2(here, there)", WRITES),
        ("save_file(tensors, path)", WRITES),
        ("path.parent.mkdir(parents=True)", CHANGES),
        ("os.makedirs(path, exist_ok=True)", CHANGES),
        ("path.touch()", CHANGES),
        ("link.symlink_to(target)", CHANGES),
        ("half.replace(path)", CHANGES),
        ("os.replace(half, path)", CHANGES),
        ("(folder / name).rename(other)", CHANGES),
        ("file.unlink(missing_ok=True)", CHANGES),
        ("shutil.rmtree(folder)", CHANGES),
        ("path.chmod(0o777)", CHANGES),
        ("tempfile.mkdtemp(prefix='a')", CHANGES),
        ("with TemporaryDirectory() as folder: pass", CHANGES),
        ("from urllib.request import urlopen", LISTENS),
        ("await asyncio.start_server(f, port=1)", LISTENS),
        ("eval(text)", RUNS_TEXT),
        ("run(command, shell=True)", RUNS_TEXT),
        ("os.system(command)", STARTS),
        ("importlib.import_module(name)", BY_NAME),
    ],
)
def test_what_is_looked_for_is_found(source, kind):
    assert kind in set(uses(source if "await" not in source else f"async def f():\n    {source}"))


@pytest.mark.parametrize(
    "source",
    [
        "path.open('rb')",
        "os.open(path, os.O_RDONLY)",
        "yaml.safe_dump(tree, sort_keys=False)",
        "torch.save(state, content)",
        "write_whole(path, content)",
        "webbrowser.open('a-page-with-w')",
        "text.replace('a', 'b')",
        "replace(piece, payload=None)",
        "make_directory(path)",
    ],
)
def test_what_writes_no_file_by_itself_is_not_named(source):
    assert not {WRITES, CHANGES} & set(uses(source))


def test_the_page_names_every_place_and_every_file_of_a_run_directory(tmp_path):
    text = (ROOT / "docs" / "security.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")}
    for place in ALLOWED:
        assert f"`{place}`" in rows, place
    for name in RunDir(tmp_path).known_by:
        assert name in text


# Who can read what a run leaves.


@pytest.fixture(params=[0o077, 0o027, 0o022])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def written(directory: Path, *, config: str = "a: 1\n", said: str = "it failed") -> Path:
    """A run directory with everything in it that a run writes by itself."""
    run = directory / "run"
    run.mkdir()
    records = RunDir(run)
    records.write_config(config)
    records.begin({"steps": 3}, title="a run", versions={"torch": "2"})
    records.log(1, metrics(1))
    records.write_status(Status(time=0.0, step=1, total=3, driver=1))
    with SpanLog(records.trace, process="env worker 0").span("step", shard=0):
        pass
    error = {"process": "env worker 0", "what": "env failed", "error": said, "trace": f"  raise E\nE: {said}"}
    RunDir(run).record(Fault(action="environments built anew", **error))
    answer_for_stacks(run, "env worker 0")
    return run


def test_what_a_run_writes_is_private_whatever_the_umask(tmp_path, umask):
    run = written(tmp_path)
    RunDir(run).write_summary(SUMMARY)
    found = [run, *run.rglob("*")]
    names = {path.name for path in found}
    assert names >= {"config.yaml", "run.json", "metrics.jsonl", "status.json", "summary.json"}
    assert names >= {"failures.jsonl", "trace", "stacks"}
    # Only the run directory itself is the test's, and has the mode of the umask.
    assert [path.name for path in found[1:] if path.stat().st_mode & 0o077] == []
    pipes = [path for path in found if path.is_fifo()]
    assert [stat.S_IMODE(pipe.stat().st_mode) for pipe in pipes] == [0o600]


def test_shared_memory_has_no_name_and_is_no_business_of_other_users():
    before = set(Path("/dev/shm").iterdir())
    file = MemoryFile()
    _, process, [(number, _)], *_ = file.write(Pickled(np.frombuffer(b"observation" * 1000, np.uint8)))
    try:
        assert set(Path("/dev/shm").iterdir()) == before
        assert os.fstat(number).st_nlink == 0
        assert not os.get_inheritable(number)
        if os.getuid() != 0:
            pytest.skip("only root can try as another user")
        look = ["cat", f"/proc/{process}/fd/{number}"]
        own = subprocess.run(look, capture_output=True, check=True)
        other = subprocess.run(
            look, user=65534, group=65534, extra_groups=[], capture_output=True, check=False
        )
        assert b"observation" in own.stdout
        assert (other.stdout, other.returncode) == (b"", 1)
        assert b"Permission denied" in other.stderr
    finally:
        file.close()


def test_only_one_place_writes_the_config_of_a_run():
    writers = [path.name for path in PACKAGE.rglob("*.py") if "write_whole(self.config," in path.read_text()]
    assert writers == ["run_dir.py"]


# What a run writes down.

SECRET = "s3cr3t-Value.x"
HOSTILE = {
    "runner": {
        "logger": {
            "wandb_key": SECRET,
            "log_path": f"https://alice:{SECRET}@host/x",
            "tags": [f"a token={SECRET}"],
        },
        "credentials": {"users": [{"name": SECRET}]},
    },
    "env": {"train": {"init_params": {"accessToken": SECRET, "url": f"wss://host/?api_key={SECRET}&x=1"}}},
    "actor": {"model": {"hub": "from-the-environment"}},
}
SAID = f"cannot clone https://alice:{SECRET}@host/repo with --token {SECRET}, 'password': '{SECRET}'"


def test_no_secret_of_a_config_or_an_error_is_in_anything_that_a_run_writes(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "from-the-environment")
    run = written(tmp_path, config=json.dumps(HOSTILE), said=f"{SAID} from-the-environment")
    write_trace(run, run / "trace.json")
    write_report([run], run / "report.html")
    (run / "said.txt").write_text("\n".join(status_of(run)))
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"config.yaml", "failures.jsonl", "trace.json", "report.html"} <= {path.name for path in files}
    for path in files:
        text = path.read_text()
        assert SECRET not in text, path
        assert "from-the-environment" not in text, path


PAYLOAD = "\"'></title></style><script>alert(1)</script><img src=https://host/x onerror=alert(1)>"


class Tags(HTMLParser):
    """The names of the elements and of their attributes in a page, and what could be fetched."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.fetched: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found |= {tag, *(f"{tag} {name}" for name, _ in attrs)}
        self.fetched += [
            f"{name}={value}"
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data", "action", "srcset") and not value.startswith("#")
        ]


def hostile(tree):
    """`tree` with the payload in every name and every text."""
    if isinstance(tree, dict):
        return {f"{name}": hostile(value) for name, value in tree.items()} | {PAYLOAD: PAYLOAD}
    if isinstance(tree, list):
        return [hostile(value) for value in tree]
    return f"{tree}{PAYLOAD}" if isinstance(tree, str) else tree


def test_nothing_of_a_runs_data_becomes_markup_of_the_page_and_it_fetches_nothing(tmp_path):
    plain = write_run(tmp_path, name="plain")
    trace = {
        **TRACE,
        f"env worker 0 {PAYLOAD.replace('/', '|')}": [
            (f"step{PAYLOAD}", 8, 14, {"shard": 0, PAYLOAD: PAYLOAD})
        ],
    }
    lines = [
        {**metrics(step), PAYLOAD: 1.0, f"env/{PAYLOAD}": 2.0, f"train/{PAYLOAD}": 3.0} for step in (1, 2, 3)
    ]
    bad = write_run(
        tmp_path,
        name=f"bad{PAYLOAD.replace('/', '|')}",
        config=hostile(CONFIG),
        facts=hostile({**FACTS, "title": "a"}),
        lines=lines,
        trace=trace,
        summary=hostile(SUMMARY),
    )
    RunDir(bad).record(Fault(process=PAYLOAD, what="env failed", error=PAYLOAD, action=PAYLOAD, lost=PAYLOAD))
    kept = Tags(write_report([plain, plain], tmp_path / "plain.html").read_text())
    page = Tags(write_report([plain, bad], tmp_path / "bad.html").read_text())
    assert page.found <= kept.found | {"code", "b", "li", "ul", "ol"}
    assert not {"script", "img", "iframe", "object", "link", "base", "form"} & page.found
    assert not any(name.split()[-1].startswith("on") for name in page.found)
    assert page.fetched == []
