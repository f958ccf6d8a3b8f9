"""What is built holds what users need, and runs where it is installed."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

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


def build(tmp_path_factory, pattern: str, *, source: Path, kind: str) -> Path:
    """A distribution of the given kind, from the tree at `source`."""
    pytest.importorskip("hatchling", reason="builds with it")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob(pattern)
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    return build(tmp_path_factory, "*.tar.gz", source=ROOT, kind="sdist")


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
    return build(tmp_path_factory, "*.whl", source=unpacked, kind="wheel")


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel, and with what this interpreter has installed but for its checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}"]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, cwd=folder
    )
    (site,) = folder.glob("lib/python*/site-packages")
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


def test_the_sdist_holds_the_whole_repository(unpacked):
    if not (ROOT / ".git").exists():
        pytest.skip("this tree is no git checkout, and git says what belongs to it")
    tracked = run(["git", "ls-files"], cwd=ROOT).splitlines()
    assert {"README.md", "LICENSE", "configs/metaworld_ppo_mlp.yaml"} <= set(tracked)
    assert not [name for name in tracked if (ROOT / name).exists() and not (unpacked / name).exists()]


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


def test_every_requirement_is_pinned_for_ci():
    def name(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0].lower())

    project = pyproject()["project"]
    wanted = {name(each) for each in project["dependencies"]}
    wanted |= {name(each) for extra in project["optional-dependencies"].values() for each in extra}
    files = (ROOT / ".ci" / "constraints.txt", ROOT / ".ci" / "constraints-verl.txt")
    pinned = {name(line) for file in files for line in file.read_text().splitlines() if "==" in line}
    assert wanted - {"rlinf-async"} <= pinned


def test_the_installed_command_explains_a_packaged_config_from_any_directory(installed, tmp_path):
    command = [installed / "bin/rlinf-async", "explain", "-n", "metaworld_ppo_mlp", "--json"]
    assert json.loads(run(command, cwd=tmp_path))["levels"]["train"] is True
