"""The plugin comes to runs that ask for it, loads nothing for others, and never stays away silently."""

import subprocess
import sys
from importlib.metadata import EntryPoints

import pytest

from rlinf_async import plugin
from tests import fresh

DRIVER = """
import sys
from hydra.core.plugins import Plugins
{before}
Plugins.instance().discover()
{after}
import ray
from omegaconf import OmegaConf
from rlinf.scheduler import Cluster
ray.init = lambda *_, **__: sys.exit("Ray starts")
cfg = OmegaConf.create({{
    "cluster": {{"num_nodes": 1, "component_placement": {{}}}},
    "runner": {{"task_type": "embodied"}},
    "env": {{"train": {{}}}},
    "actor": {{"model": {{"model_type": "mlp_policy"}}}},
    **{block},
}})
try:
    Cluster(cluster_cfg=cfg.cluster)
finally:
    print("LOADED", "rlinf_async.hosts.rlinf.hooks" in sys.modules)
"""
BLOCKED = """
import sys
from importlib.abc import MetaPathFinder
class Blocker(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if {{name, name.split(".")[0]}} & set({blocked!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
HEAVY = ("torch", "numpy", "omegaconf", "rich", "yaml", "ray", "rlinf", "verl")
FRAMEWORK = """
installed = []

class Launcher:
    def start(self, cfg):
        return f"starts {cfg['name']} with {installed}"

class Host:
    available = True
    def install(self):
        installed.append("the plugin")

class Doorway:
    CALLS = {"their_framework": ("Launcher", "start")}
    def asks(argument):
        return "async" in argument
"""
ENTRY_POINTS = """
[rlinf_async.hosts]
theirs = their_framework:Host
[rlinf_async.doorways]
theirs = their_doorway:Doorway
"""
SIMULATORS = ("metaworld", "mujoco", "libero", "robosuite", "mani_skill", "gymnasium_robotics")


def drive(block: str, *, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    code = DRIVER.format(before=before, after=after, block=block)
    return fresh.run(code, ground=fresh.TORCH_AND_RAY)


def test_a_misspelt_block_ends_the_run_before_ray_whether_rlinf_is_imported_early_or_late():
    for imported in ({"before": "import rlinf.scheduler"}, {"after": "import rlinf.scheduler"}):
        done = drive('{"async": {"mod": "full"}}', **imported)
        assert done.returncode == 1
        assert "did you mean async.mode" in done.stderr
        assert "Ray starts" not in done.stderr


def test_a_plugin_that_cannot_load_ends_a_run_with_a_block_and_says_why():
    done = drive(
        '{"async": {"mode": "full"}}', before=BLOCKED.format(blocked=("rlinf_async.hosts.rlinf.models",))
    )
    assert done.returncode == 1
    said = "the config asks for rlinf-async, which cannot be loaded here: cannot import name 'models'"
    assert said in done.stderr
    assert "Ray starts" not in done.stderr


def test_a_run_without_a_block_loads_nothing_of_ours():
    done = drive("{}")
    assert "LOADED False" in done.stdout
    assert "Ray starts" in done.stderr


@pytest.mark.parametrize(
    ("entered", "absent"),
    [("register", SIMULATORS), ("watch", HEAVY)],
    ids=["any simulator", "anything else"],
)
def test_the_doorway_opens_without(entered, absent):
    code = BLOCKED.format(blocked=absent) + f"from rlinf_async import plugin; plugin.{entered}()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_packages_framework_has_a_doorway_of_its_own(tmp_path, monkeypatch):
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    framework, doorway = FRAMEWORK.split("class Doorway")
    (tmp_path / "their_framework.py").write_text(framework)
    (tmp_path / "their_doorway.py").write_text("class Doorway" + doorway)
    monkeypatch.syspath_prepend(tmp_path)
    unwatched = [finder for finder in sys.meta_path if not isinstance(finder, plugin._GuardingFinder)]
    monkeypatch.setattr(sys, "meta_path", unwatched)
    monkeypatch.setattr(plugin, "_hosts", lambda: [plugin.load_class(plugin.HOSTS, "theirs")()])
    plugin.watch()
    from their_framework import Launcher

    assert Launcher().start({"name": "a run"}) == "starts a run with []"
    assert Launcher().start({"name": "another", "async": {}}) == "starts another with ['the plugin']"


def test_watching_twice_guards_once(monkeypatch):
    monkeypatch.setattr(sys, "modules", {})
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setattr(plugin, "provided", lambda group: EntryPoints())
    plugin.watch()
    plugin.watch()
    assert [type(finder).__name__ for finder in sys.meta_path] == ["_GuardingFinder"]


def test_a_run_without_a_framework_loads_none(tmp_path):
    """`train` installs the plugin into the framework of its config, not into every one that is here."""
    trains = (
        "import sys\nfrom rlinf_async import cli\n"
        f"cli.app(['train', 'local/point_reach', 'settings.batches=1', 'run_dir={tmp_path / 'run'}'],"
        " standalone_mode=False)\n"
        "print('LOADED', [name for name in ('ray', 'rlinf', 'verl', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", trains], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("LOADED []")
