"""The line that `.ci/run` ends with is the sum of its test runs."""

import ast
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SCRIPT = REPOSITORY / ".ci/closing_line.py"
START = "============ test session starts ============\n"
TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert False
@pytest.mark.skip(reason="to see")
def test_skipped(): pass
@pytest.fixture
def broken(): raise ValueError
def test_broken(broken): pass
"""


@pytest.fixture(scope="module")
def closing_line():
    if not SCRIPT.exists():
        pytest.skip("this is not a checkout")
    spec = importlib.util.spec_from_file_location("closing_line", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.closing_line


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """What pytest itself prints."""
    file = tmp_path_factory.mktemp("ci") / "test_small.py"
    file.write_text(TESTS)
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", str(file))
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_two_runs_are_one_sum(closing_line, log):
    line = closing_line(log + log)
    assert line.startswith("=== 2 failed, 2 passed, 2 skipped, 2 errors in ")


def test_hours_and_deselected_tests_are_no_counts(closing_line):
    ended = START + "= 3 passed, 700 deselected, 1 warning in 3671.46s (1:01:11) =\n"
    assert closing_line(ended + ended) == "=== 6 passed, 2 warnings in 7342.92s ==="


@pytest.mark.parametrize("log", ["", START, START + "= 3 passed in 1.00s =\n" + START])
def test_a_run_that_has_not_ended_is_a_failure(closing_line, log, tmp_path):
    with pytest.raises(ValueError, match="ended without a closing line"):
        closing_line(log)
    (tmp_path / "log").write_text(log)
    ended = subprocess.run((sys.executable, SCRIPT, tmp_path / "log"), capture_output=True, text=True)
    assert ended.returncode == 1
    assert "1 failed" in ended.stderr


@pytest.mark.parametrize("counts", ["5 skipped", "no tests ran", "700 deselected", "2 skipped, 1 warning"])
def test_a_run_that_executed_no_test_is_a_failure(closing_line, counts, tmp_path):
    good = START + "= 3 passed in 1.00s =\n"
    with pytest.raises(ValueError, match=f"executed no test: {counts}"):
        closing_line(good + START + f"= {counts} in 0.10s =\n")
    (tmp_path / "log").write_text(START + f"= {counts} in 0.10s =\n")
    ended = subprocess.run((sys.executable, SCRIPT, tmp_path / "log"), capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "1 failed" in ended.stderr


@pytest.fixture(scope="module")
def script():
    if not SCRIPT.exists():
        pytest.skip("this is not a checkout")
    return (REPOSITORY / ".ci/run").read_text()


def test_every_test_that_is_not_nightly_is_in_one_of_the_runs(script):
    makefile = (REPOSITORY / "Makefile").read_text()
    light, heavy = (re.search(rf"^{name} := (.*)$", makefile, re.M)[1] for name in ("LIGHT", "HEAVY"))
    starts = re.fullmatch(r"\((.*)\) and not nightly", heavy)[1]
    assert light == f"not ({starts} or nightly)"
    assert "\ntests_beside_each_other test-light\n" in script
    assert "\nparts=(test-heavy-runs test-heavy-others test-light-verl clean-room test-heavy)\n" in script
    assert '\ntests --jobs 3 --keep-going --output-sync=target "${parts[@]}"\n' in script
    parts = re.search(r"^test-heavy: (.*)$", makefile, re.M)[1].split()
    selected = dict(
        re.findall(
            r"^(test-(?:light|heavy)\S*): .*\n\t.* -m pytest ((?:.|\\\n)*?) \$\(ARGS\)$", makefile, re.M
        )
    )
    selected = {part: re.sub(r"\\\n\t+", "", what) for part, what in selected.items()}
    own = '-m "$(HEAVY) and not shared_run"'
    assert selected == {
        "test-light": '-m "$(LIGHT)"',
        "test-light-verl": '$(TESTS_VERL) -m "$(LIGHT)"',
        "test-heavy-runs": f"tests/runs --ignore $(NODES) {own}",
        "test-heavy-nodes": f"$(NODES) {own}",
        "test-heavy-others": f"$(filter-out tests/runs/%,$(call HEAVY_FILES,tests)) {own}",
        "test-heavy-shared": 'tests/runs -m "$(HEAVY) and shared_run"',
        "test-heavy-verl": '$(call HEAVY_FILES,$(TESTS_VERL)) -m "$(HEAVY)"',
    }
    assert {*parts} == {part for part in selected if part.startswith("test-heavy-")}
    marks = starts.replace(" or ", "|")
    assert rf'grep -rlE "mark\.({marks})\b" --include="test_*.py" $(1)' in makefile
    assert rf'r"mark\.({marks})\b"' in (REPOSITORY / "tests/conftest.py").read_text()


def imported(*folders):
    """The packages outside the standard library that modules of these folders import, wherever they do."""
    found = set()
    for file in (file for folder in folders for file in (REPOSITORY / "rlinf_async" / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"rlinf_async"}


def test_what_runs_in_the_main_environment_alone_has_the_same_packages_beside_verl(script):
    pins = [
        dict(
            line.split("==", 1)
            for line in (REPOSITORY / ".ci" / name).read_text().splitlines()
            if "==" in line
        )
        for name in ("constraints.txt", "constraints-verl.txt")
    ]
    used = imported("core", "loops", "wire", "ray_runtime", "hosts/workers")
    assert {"torch", "ray", "numpy"} <= used
    for package in used:
        assert pins[0][package] == pins[1][package], (
            f"{package}: tests/wire, tests/ray_runtime and tests/hosts/workers in TESTS_VERL"
        )


def shell(script, tmp_path, *lines):
    """What bash makes of the script's functions and then of `lines`."""
    functions = script[script.index("exec 3> ") : script.index("\ntests_beside_each_other test-light\n")]
    begin = ["began=$EPOCHSECONDS", f"log={tmp_path}/log", "touch $log", functions]
    end = ["exec 3>&-", "kill $shown"]
    program = "\n".join([*begin, *lines, *end])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )


def test_tests_whose_worker_died_run_again_in_one_process(script, tmp_path):
    said = "'worker gw0 crashed and worker restarting disabled' '= 1 error in 0.10s ='"
    case = f"case '$(ARGS)' in -n*) printf '%s\\n' {said}; exit 1;; *) echo '= 1 passed in 0.10s =';; esac"
    (tmp_path / "Makefile").write_text(f"crash:\n\t@{case}\n")
    ended = shell(script, tmp_path, "tests_beside_each_other crash", "echo status=$status")
    assert "status=0\n" in ended.stdout, ended.stdout + ended.stderr
    assert "1 error" not in (tmp_path / "log").read_text()
    assert "1 passed" in (tmp_path / "log").read_text()


def test_a_suite_that_has_not_ended_in_time_fails_and_is_named(script, tmp_path):
    (tmp_path / "Makefile").write_text("slow:\n\t@sleep 60\nquick:\n\t@echo '= 1 passed in 0.10s ='\n")
    lines = ["LATEST_END_S=1", "tests quick", "echo first=$status", "tests slow", "echo second=$status"]
    ended = shell(script, tmp_path, *lines, "sleep 1")
    assert "first=0\n" in ended.stdout, ended.stderr
    assert "second=124\n" in ended.stdout
    assert "make slow had not ended" in ended.stdout
    assert (tmp_path / "log").read_text().endswith("=== 1 error in 0.00s ===\n")


def test_a_process_that_a_test_has_left_behind_holds_nothing_up(script, tmp_path):
    (tmp_path / "Makefile").write_text(
        "orphan:\n\t@(sleep 100 & echo $$! > pid); echo '= 1 passed in 0.10s ='\n"
    )
    try:
        ended = shell(script, tmp_path, "tests orphan", "echo status=$status")
        assert "status=0\n" in ended.stdout
        assert "1 passed" in (tmp_path / "log").read_text()
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
