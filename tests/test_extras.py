"""What is said where the package of an extra is missing, from the metadata and on the command line."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rlinf_async.extras import EXTRA_OF, pip_install, remedy

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

CORE_ONLY = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from rlinf_async.cli import app
app()
"""


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process in which no extra is installed."""
    code = CORE_ONLY.format(absent={"rlinf", *EXTRA_OF})
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def test_a_remedy_names_the_packages_of_an_extra_as_pyproject_does():
    assert pip_install("report") == "pip install 'jinja2>=3.1'"
    assert pip_install("report", "metaworld").count("'") == 6


def test_every_extra_of_the_table_is_one_of_pyproject():
    assert set(EXTRA_OF.values()) <= set(EXTRAS)


def test_a_module_that_no_extra_brings_is_none_of_our_business():
    assert remedy(ModuleNotFoundError("No module named 'their_module'", name="their_module")) is None
    assert "the extra 'rlinf' brings" in remedy(ModuleNotFoundError(name="hydra.core"))


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("trace", "--help")])
def test_the_core_alone_says_what_it_can_do(arguments, tmp_path):
    done = command(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("explain", "-n", "metaworld_ppo_mlp"), "the extra 'rlinf' brings"),
        (("train", "-n", "metaworld_ppo_mlp"), "the extra 'rlinf' brings"),
        (("sweep", "-n", "metaworld_ppo_mlp"), "the extra 'rlinf' brings"),
        (("configs",), "the extra 'rlinf' brings"),
        (("bench",), "put a checkout of RLinf on PYTHONPATH"),
        (("report", "nowhere"), "the extra 'report' brings"),
        (("plan", "nowhere"), "nowhere does not exist"),
        (("status", "nowhere"), "nowhere is no directory"),
        (("trace", "nowhere"), "nowhere is no directory"),
    ],
)
def test_a_command_without_an_extra_works_or_says_in_a_sentence_what_it_needs(arguments, needed, tmp_path):
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert needed in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_the_doctor_of_the_core_alone_finds_one_thing_to_mend(tmp_path):
    """Whatever a framework would be needed for is not tried, and not a failure of its own."""
    done = command("doctor", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (failed,) = [check for check in json.loads(done.stdout) if check["status"] == "fail"]
    assert (failed["name"], failed["mend"]) == ("frameworks", pip_install("rlinf"))
