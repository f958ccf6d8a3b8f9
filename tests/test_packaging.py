"""The wheel holds what users need, and its core runs where no host is installed."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="builds the wheel with it")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory) -> Path:
    """A folder into which the wheel is installed, apart from the checkout."""
    folder = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(folder),
    ]
    subprocess.run([*pip, str(wheel)], check=True, cwd=folder)
    return folder


def run(code: str, site: Path) -> subprocess.CompletedProcess[str]:
    """Runs `code` away from the checkout, whose editable install comes later on the path than `site`."""
    env = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=site.parent, env=env, capture_output=True, text=True
    )


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_holds_every_module_every_config_and_the_license(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rlinf_async").rglob("*.py")}
    moved = {name for name in package if name.startswith("rlinf_async/_hydra/")}
    configs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    assert package - moved <= names
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


def test_the_core_and_the_config_import_without_any_host(site):
    done = run(WITHOUT_HOSTS + IMPORT_THE_CORE, site)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(site)


def test_the_installed_configs_are_read_as_package_data(site):
    code = "from importlib.resources import files\n"
    code += "print((files('rlinf_async') / 'configs/async/full.yaml').read_text())"
    done = run(code, site)
    assert done.returncode == 0, done.stderr
    assert "mode: full" in done.stdout


def test_the_version_is_the_same_in_the_package_and_in_its_metadata():
    import rlinf_async

    assert rlinf_async.__version__ == pyproject()["project"]["version"]


def test_every_requirement_is_pinned_for_ci():
    def name(requirement: str) -> str:
        return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0].lower())

    project = pyproject()["project"]
    wanted = {name(each) for each in project["dependencies"]}
    wanted |= {name(each) for extra in project["optional-dependencies"].values() for each in extra}
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pinned = {name(line) for line in lines if "==" in line}
    assert wanted - {"rlinf-async"} <= pinned


def test_the_installed_command_explains_a_packaged_config_from_any_directory(site):
    code = "import sys; sys.argv = ['rlinf-async', 'explain', '-n', 'metaworld_ppo_mlp', '--json']\n"
    code += "import rlinf_async.cli; print(rlinf_async.cli.__file__, file=sys.stderr); rlinf_async.cli.app()"
    done = run(code, site)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["levels"]["train"] is True
    assert str(site) in done.stderr
