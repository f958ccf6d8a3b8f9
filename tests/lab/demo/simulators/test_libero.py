import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, prepare_libero
from rlinf_async.lab.demo.simulators.libero_assets import link_assets
from tests.libero_assets import ASSETS, needs_assets, needs_libero

pytestmark = pytest.mark.libero

SIMULATE = """
import sys
from pathlib import Path

from rlinf_async.lab.demo.simulators.libero import prepare_libero

prepare_libero(Path(sys.argv[1]), Path(sys.argv[2]))

from libero.libero import benchmark, get_libero_path
from libero.libero.envs import OffScreenRenderEnv

task = benchmark.get_benchmark("libero_object")().get_task(0)
env = OffScreenRenderEnv(
    bddl_file_name=str(Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)),
    camera_heights=32,
    camera_widths=32,
)
env.reset()
picture = env.step([0.0] * 7)[0]["agentview_image"]
env.close()
assert picture.shape == (32, 32, 3), picture.shape
assert picture.std() > 1, picture.std()
"""


def test_a_folder_that_holds_no_assets_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="scenes"):
        prepare_libero(tmp_path, tmp_path / "config", {})


@needs_libero
@needs_assets
def test_the_configuration_answers_what_liberos_import_would_ask(tmp_path):
    environ = {}
    prepare_libero(ASSETS, tmp_path, environ)
    places = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert environ["LIBERO_CONFIG_PATH"] == str(tmp_path)
    assert Path(places["bddl_files"]).is_dir()
    assert Path(places["init_states"]).is_dir()
    assert (Path(places["assets"]) / "scenes").is_dir()


@needs_libero
@needs_assets
@pytest.mark.render
def test_a_task_of_the_object_suite_runs_and_renders(tmp_path):
    # In a process of its own: the import of LIBERO binds its configuration and the OpenGL backend.
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SIMULATE, str(ASSETS), str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]


def test_a_block_of_the_users_that_is_called_libero_prepares_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(ASSETS_VARIABLE, str(tmp_path / "nowhere"))
    link_assets({"libero": {"mine": 1}, "env": {"train": {"env_type": "maniskill"}}})
