"""The line that `.ci/run` ends with is the sum of its test runs."""

import importlib.util
import os
import re
import subprocess
import sys
import time
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


def test_all_heavy_tests_are_in_the_run_that_has_the_machine():
    if not SCRIPT.exists():
        pytest.skip("this is not a checkout")
    text = (REPOSITORY / ".ci/run").read_text()
    assert """\nlight="not ($heavy or long)"\n""" in text
    for target in ("test", "test-verl"):
        assert f"\ntests_beside_each_other {target}\n" in text
        assert f"""tests {target} ARGS="-m '($heavy) and not long'\"\n""" in text


@pytest.mark.parametrize(("seconds", "counted"), [(-1, "1 skipped"), (600, "1 passed")])
def test_a_test_that_would_begin_too_late_is_left_out_and_says_why(seconds, counted):
    one = "tests/test_ci.py::test_the_hour_of_ci_is_not_given_away_before_its_last_tests"
    environment = {**os.environ, "TESTS_BEGIN_UNTIL": str(time.time() + seconds)}
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", one)
    ended = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    assert counted in ended.stdout
    assert ("no time was left to begin it" in ended.stdout) == (seconds < 0)


def test_the_hour_of_ci_is_not_given_away_before_its_last_tests():
    if not SCRIPT.exists():
        pytest.skip("this is not a checkout")
    minutes = re.findall(r"^begin_until_minute (\d+)$", (REPOSITORY / ".ci/run").read_text(), re.MULTILINE)
    assert [int(minute) for minute in minutes] == sorted(map(int, minutes))
    assert int(minutes[-1]) <= 55
