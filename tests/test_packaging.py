"""What is built holds what users need, and runs where it is installed."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.built import build, install, normal
from tests.sources import unpack

ROOT = Path(__file__).parents[1]

WITHOUT_HOSTS = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"ray", "rlinf", "hydra", "omegaconf", "transformers", "metaworld"}:
            raise ModuleNotFoundError(f"{name} is made absent by this test", name=name)

sys.meta_path.insert(0, Absent())
"""

IMPORT_THE_CORE = """
import importlib, pkgutil
import rlinf_async.config, rlinf_async.core, rlinf_async.loops
for package in (rlinf_async.core, rlinf_async.loops):
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
print(rlinf_async.__file__)
"""


COMPOSE = """
import sys
import rlinf_async.configs
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
with initialize_config_module("rlinf_async.configs", version_base="1.3"):
    print(OmegaConf.to_yaml(compose(sys.argv[1])))
print(rlinf_async.configs.__path__)
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("dist"), "*.tar.gz", source=ROOT, kind="sdist")


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory) -> Path:
    """The tree in the sdist: what a download as an archive gives, too."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    unpack(sdist, folder)
    (tree,) = folder.iterdir()
    return tree


@pytest.fixture(scope="module")
def wheel(unpacked, tmp_path_factory) -> Path:
    """Built from the sdist, as `python -m build` and package indexes do."""
    return build(tmp_path_factory.mktemp("dist"), "*.whl", source=unpacked, kind="wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel, and with what this interpreter has installed but for its checkout."""
    folder = tmp_path_factory.mktemp("venv")
    site = install(wheel, folder)
    # A folder that a .pth file names is searched, but the .pth files in it are not read: no editable install.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def run(command: list[str | Path], *, cwd: Path, path: str = "") -> str:
    """The output of a command that sees this checkout neither in its directory nor on its path."""
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_sdist_holds_what_is_installed_and_read_and_no_more(unpacked):
    files = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rlinf_async").rglob("*.py")}
    texts = {"README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "docs/install.md"}
    tables = {f"rlinf_async/hosts/{host}/keys.toml" for host in ("local", "rlinf", "verl")}
    assert package | texts | tables | {"configs/metaworld_ppo_mlp.yaml", "examples/toy_host.py"} <= files
    tops = {name.partition("/")[0] for name in files if "/" in name}
    assert tops == {"rlinf_async", "configs", "examples", "patches", "docs"}


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_what_is_built_carries_no_weights_and_is_small(kind, request):
    built = request.getfixturevalue(kind)
    if kind == "wheel":
        members = {each.filename: each.file_size for each in zipfile.ZipFile(built).infolist()}
    else:
        with tarfile.open(built) as archive:
            members = {each.name: each.size for each in archive}
    assert not [name for name in members if name.endswith((".pt", ".npz", ".safetensors"))]
    assert max(members.values()) < 500_000, max(members, key=members.get)
    assert built.stat().st_size < 1_500_000


def test_the_repository_needs_no_symbolic_link():
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no git checkout, and git says what belongs to it")
    entries = run(["git", "ls-files", "--stage"], cwd=ROOT).splitlines()
    assert not [entry for entry in entries if entry.startswith("120000")]


def test_the_wheel_holds_every_module_every_config_and_the_license(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rlinf_async").rglob("*.py")}
    moved = {name for name in package if name.startswith("rlinf_async/_hydra/")}
    moved.add("rlinf_async/configs.py")
    configs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    assert package - moved <= names
    assert not moved & names
    assert configs
    assert {f"rlinf_async/{config}" for config in configs} <= names
    assert "rlinf_async/py.typed" in names
    assert {f"rlinf_async/hosts/{host}/keys.toml" for host in ("local", "rlinf", "verl")} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_puts_the_hydra_plugin_where_hydra_looks(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "hydra_plugins/rlinf_async_search_path.py" in names
    assert "hydra_plugins/__init__.py" not in names, "it would hide the plugins of other packages"
    assert not [name for name in names if "_hydra/" in name]


def test_the_wheel_holds_nothing_beside_the_package_and_the_hydra_plugin(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rlinf_async", "hydra_plugins"}


def test_the_wheel_declares_every_entry_point(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
    text = archive.read(name).decode()
    for group, points in pyproject()["project"]["entry-points"].items():
        assert f"[{group}]" in text
        for key, value in points.items():
            assert f"{key} = {value}" in text
    assert "rlinf-async = " in text


def test_the_core_and_the_config_import_without_any_host(installed):
    output = run([installed / "bin/python", "-c", WITHOUT_HOSTS + IMPORT_THE_CORE], cwd=installed)
    assert Path(output.strip()).is_relative_to(installed)


@pytest.mark.parametrize("name", ["metaworld_ppo_mlp", "async/full"])
def test_hydra_finds_the_configs_of_the_installed_package(installed, name):
    output = run([installed / "bin/python", "-c", COMPOSE, name], cwd=installed)
    assert "mode: full" in output


def test_hydra_finds_the_configs_of_a_tree_that_is_only_on_the_path(unpacked, installed):
    """The environment has the wheel as well; the path comes first."""
    output = run(
        [installed / "bin/python", "-c", COMPOSE, "metaworld_ppo_mlp"], cwd=installed, path=str(unpacked)
    )
    assert "mode: full" in output
    assert str(unpacked / "configs") in output


def test_the_version_is_the_same_in_the_package_and_in_its_metadata():
    import rlinf_async

    assert rlinf_async.__version__ == pyproject()["project"]["version"]


def pins(file: str) -> dict[str, Requirement]:
    """The pins of a file of constraints, by name."""
    lines = (ROOT / ".ci" / file).read_text().splitlines()
    return {normal(each.name): each for each in map(Requirement, (line for line in lines if "==" in line))}


def test_every_requirement_is_pinned_for_ci():
    project = pyproject()["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {normal(Requirement(line).name) for lines in groups for line in lines}
    assert wanted <= {*pins("constraints.txt"), *pins("constraints-verl.txt")}


def oldest_pythons() -> list[str]:
    """The oldest patch release of every Python that this package names: 3.11.0 and so on."""
    project = pyproject()["project"]
    named = [each.rpartition(" :: ")[2] for each in project["classifiers"] if " Python :: " in each]
    oldest = [f"{each}.0" for each in named]
    supported = SpecifierSet(project["requires-python"])
    assert oldest
    assert all(each in supported for each in oldest), "a classifier names what requires-python excludes"
    minors = {f"3.{minor}.0" for minor in range(99) if f"3.{minor}.0" in supported}
    assert minors == set(oldest), "requires-python takes in what no classifier names"
    return oldest


@pytest.mark.parametrize(
    ("file", "environment"),
    [("constraints.txt", Path(sys.prefix)), ("constraints-verl.txt", ROOT / ".venv-verl")],
)
def test_every_pin_runs_on_the_oldest_patch_release_of_every_python(file, environment):
    sites = [str(site) for site in environment.glob("lib/python*/site-packages")]
    if not sites:
        pytest.skip(f"there is no {environment.name}: make setup-verl")
    installed = {normal(each.metadata["Name"]): each for each in distributions(path=sites)}
    pinned = pins(file)
    refused = []
    for name in pinned.keys() & installed.keys():
        needed = SpecifierSet(installed[name].metadata["Requires-Python"] or "")
        marker = pinned[name].marker
        refused += [
            f"{pinned[name]} wants Python {needed}, not {python}"
            for python in oldest_pythons()
            if not needed.contains(python) and (marker is None or marker.evaluate(versions(python)))
        ]
        assert installed[name].version in pinned[name].specifier, f"{name} is not installed as pinned"
    assert not refused
    assert len(pinned.keys() & installed.keys()) > len(pinned) / 2, (
        "these are not the pins of that environment"
    )


def versions(python: str) -> dict[str, str]:
    """What a marker may ask about that Python."""
    return {"python_full_version": python, "python_version": python.rpartition(".")[0]}


def test_what_a_user_installs_holds_no_tools_of_tests_checks_or_documents():
    makefile = (ROOT / "Makefile").read_text()
    extras = pyproject()["project"]["optional-dependencies"]
    tools = {Requirement(line).name for extra in ("docs", "test", "dev") for line in extras[extra]}
    for variable in ("EXTRAS", "EXTRAS_VERL"):
        named = re.search(rf"^{variable} := (.*)$", makefile, re.M)[1].split()
        of_user = {Requirement(line).name for extra in named for line in extras[extra]}
        assert named
        assert not of_user & tools
        developers = re.search(rf"^{variable}_DEV := (.*)$", makefile, re.M)[1].split()
        assert not {*named} & {*developers}


def test_the_installed_command_explains_a_packaged_config_from_any_directory(installed, tmp_path):
    command = [installed / "bin/rlinf-async", "explain", "-n", "metaworld_ppo_mlp", "--json"]
    assert json.loads(run(command, cwd=tmp_path))["levels"]["train"] is True
