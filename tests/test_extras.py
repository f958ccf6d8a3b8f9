"""What the wheel does by itself and with each extra, and what is said where a package is missing.

The environments hold what the wheel's metadata brings and nothing else, by links to what is installed here.
"""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlinf_async.extras import EXTRA_OF, PROPER, pip_install, remedy
from tests.built import build, install, link, normal, requirements

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PAGE = (ROOT / "docs" / "install.md").read_text()
RLINF = "put a checkout of RLinf on PYTHONPATH"

IMPORTS = {
    "rlinf": "import rlinf_async.ray_runtime.driver.fleet, rlinf_async.hosts.workers.env_actor",
    "metaworld": "import rlinf_async.lab.demo.simulators.metaworld_env, gymnasium, metaworld",
    "report": "import rlinf_async.lab.report.page",
    "bench": "import scipy.stats, matplotlib.pyplot, PIL.Image",
}
"""What some extras are for."""

DOCTOR = ("rlinf-async", "doctor", "--json")
FIND = "import sys; from importlib.util import find_spec; print(*(m for m in sys.argv[1:] if find_spec(m)))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("dist"), "*.whl", source=ROOT, kind="wheel")


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """Environments with the wheel and some extras; each is made when it is first asked for."""
    made = {}

    def of(*extras: str) -> Path:
        if extras not in made:
            folder = tmp_path_factory.mktemp("-".join(extras) or "alone")
            absent = link(requirements(wheel, extras), install(wheel, folder), no_deps=["rlinf"])
            made[extras] = folder, absent
        folder, absent = made[extras]
        if absent:
            pytest.skip(f"not installed here: {', '.join(absent)}")
        return folder

    return of


def ended(environment: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of that environment, which sees nothing of this one."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    command = [environment / "bin" / words[0], *words[1:]]
    return subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True)


def run(environment: Path, *words: str, cwd: Path) -> str:
    """The output of a command that works."""
    done = ended(environment, *words, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_remedy_names_the_packages_of_an_extra_as_pyproject_does():
    assert pip_install("report") == "pip install 'jinja2>=3.1'"
    assert pip_install("report", "metaworld").count("'") == 6


def test_every_extra_of_the_table_is_one_of_pyproject():
    assert set(EXTRA_OF.values()) <= set(EXTRAS)


def test_a_module_that_no_extra_brings_is_none_of_our_business():
    assert remedy(ModuleNotFoundError("No module named 'their_module'", name="their_module")) is None
    assert "the extra 'rlinf' brings" in remedy(ModuleNotFoundError(name="ray.util"))


def test_a_module_that_every_installation_has_is_of_no_extra():
    said = remedy(ModuleNotFoundError(name="hydra.core"))
    assert "comes with rlinf-async: pip install" in said
    assert "hydra-core" in said
    assert "ray" not in said


def test_the_modules_that_every_installation_has_are_those_of_pyproject():
    names = {normal(Requirement(line).name) for line in PROJECT["dependencies"]}
    modules = {"hydra": "hydra-core", "yaml": "pyyaml"}
    assert {modules.get(module, module) for module in PROPER} == names


def test_the_wheel_alone_lists_explains_trains_and_reports(environment, tmp_path):
    alone = environment()
    assert run(alone, "python", "-c", FIND, *EXTRA_OF, "rlinf", cwd=tmp_path) == "jinja2\n", (
        "torch asks for it"
    )
    assert "local/point_reach" in run(alone, "rlinf-async", "configs", cwd=tmp_path)
    facts = json.loads(run(alone, "rlinf-async", "explain", "local/point_reach", "--json", cwd=tmp_path))
    assert facts["levels"] == {"train": True, "rollout": True, "streamer": True}
    short = ("local/point_reach", "settings.batches=2", "run_dir=run")
    assert "produced 64 = trained 64" in run(alone, "rlinf-async", "train", *short, cwd=tmp_path)
    for command in ("status", "trace", "report"):
        run(alone, "rlinf-async", command, "run", cwd=tmp_path)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("trace", "--help")])
def test_the_wheel_alone_says_what_it_can_do(arguments, environment, tmp_path):
    done = ended(environment(), "rlinf-async", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (("explain", "-n", "metaworld_ppo_mlp"), RLINF),
        (("train", "-n", "metaworld_ppo_mlp"), RLINF),
        (("sweep", "-n", "metaworld_ppo_mlp"), RLINF),
        (("bench",), RLINF),
        (("report", "nowhere"), "nowhere does not exist"),
        (("plan", "nowhere"), "nowhere does not exist"),
        (("status", "nowhere"), "nowhere is no directory"),
        (("trace", "nowhere"), "nowhere is no directory"),
    ],
)
def test_a_command_without_an_extra_says_in_a_sentence_what_it_needs(
    arguments, needed, environment, tmp_path
):
    done = ended(environment(), "rlinf-async", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert needed in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_the_doctor_of_the_wheel_alone_finds_nothing_to_mend(environment, tmp_path):
    """What a framework or a simulator would be needed for is no failure."""
    checks = {each["name"]: each for each in json.loads(run(environment(), *DOCTOR, cwd=tmp_path))}
    assert not [each for each in checks.values() if each["status"] == "fail"]
    assert "need a framework or a simulator that is not installed" in checks["entry points"]["detail"]
    assert "RLinf" in checks["rlinf"]["mend"]


@pytest.mark.parametrize("extra", sorted({*EXTRA_OF.values()} - {"verl"}))
def test_an_extra_brings_the_modules_for_which_it_is_named(extra, environment, tmp_path):
    modules = [module for module, of in EXTRA_OF.items() if of == extra]
    assert modules
    command = f"{FIND}; {IMPORTS[extra]}"
    assert run(environment(extra), "python", "-c", command, *modules, cwd=tmp_path).split() == modules


def test_the_demo_is_explained_with_the_extras_that_the_page_names(environment, tmp_path):
    line = re.search(r'pip install "\.\[(?P<extras>rlinf,[^]]+)\]"', PAGE)
    assert "pip install --no-deps rlinf==" in PAGE, "what the extra rlinf-wheel stands for"
    extras = (*line["extras"].split(","), "rlinf-wheel")
    explain = ("rlinf-async", "explain", "metaworld_ppo_mlp", "--json")
    assert json.loads(run(environment(*extras), *explain, cwd=tmp_path))["levels"]["train"] is True


def test_the_table_of_the_page_names_every_extra_and_no_other():
    table = PAGE.partition("\n## Extras\n")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| `([\w-]+)` \|", table, re.M)} == {*EXTRAS}
