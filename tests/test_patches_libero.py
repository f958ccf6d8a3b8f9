"""The patch with which RLinf's own LIBERO draws the last step of a chunk alone, on real simulators."""

import json
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="the patch is for RLinf")

from tests import patching
from tests.libero_assets import needs_assets, needs_libero, rendering

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.timeout(1000), pytest.mark.libero, needs_libero, needs_assets]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a script prints last, with the RLinf that has every patch."""
    folder = patching.patched("rlinf", tmp_path_factory.mktemp("patched"))

    def run(script: str):
        done = patching.run(script, folder, ROOT, timeout_s=900, **rendering())
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


CAMERAS = """
import json
from contextlib import contextmanager, nullcontext
import numpy as np
from benchmarks.dead_work.frames import COMMON_ENV_SETTINGS, libero
libero({**COMMON_ENV_SETTINGS}, "libero_spatial", 64)
from libero.libero import benchmark, get_libero_path
from libero.libero.envs import OffScreenRenderEnv
from rlinf.envs.libero.venv import kept_pictures
CHUNKS, CHUNK = 3, 3
suite = benchmark.get_benchmark_dict()["libero_spatial"]()
task = suite.get_task(0)
file = f"{get_libero_path('bddl_files')}/{task.problem_folder}/{task.bddl_file}"

@contextmanager
def switched_off(env):
    cameras = [each for each in env.env._observables.values() if each.modality == "image"]
    for camera in cameras:
        camera.set_enabled(False)
    yield
    for camera in cameras:
        camera.set_enabled(True)

env = OffScreenRenderEnv(bddl_file_name=file, camera_heights=64, camera_widths=64)

def play(between):
    env.seed(0)
    env.reset()
    env.set_init_state(suite.get_task_init_states(0)[0])
    draw, seen = np.random.default_rng(0), []
    for step in range(CHUNKS * CHUNK):
        with nullcontext() if step % CHUNK == CHUNK - 1 else between(env):
            seen.append(env.step(draw.uniform(-0.5, 0.5, 7)))
    return seen

def frame(seen, step):
    return seen[step][0]["agentview_image"].astype(int)

def alike(one, other):
    same = all(np.array_equal(value, other[0][name]) for name, value in one[0].items())
    return same and one[1:3] == other[1:3]

every = play(lambda env: nullcontext())
kept, switched = play(kept_pictures), play(switched_off)
env.close()
def nearest(picture):
    return int(np.argmin([np.abs(picture - frame(every, step)).mean() for step in range(len(every))]))

ends = [CHUNK - 1 + CHUNK * number for number in range(CHUNKS)]
print(json.dumps({
    "kept": [alike(every[end], kept[end]) for end in ends],
    "between": [np.array_equal(frame(kept, end + 1), frame(kept, end)) for end in ends[:-1]],
    "brightness": [float(frame(switched, end).mean()) for end in ends],
    "own": float(frame(every, ends[0]).mean()),
    "nearest": [nearest(frame(switched, end)) for end in ends],
    "switched": [np.array_equal(frame(switched, end), frame(every, end)) for end in ends],
    "ends": ends,
}))
"""


def test_kept_pictures_are_exact_where_cameras_that_are_switched_off_and_on_are_black_and_late(found):
    result = found(CAMERAS)
    assert result["kept"] == [True] * 3
    assert result["between"] == [True] * 2
    # A camera that has been switched on again: first nothing, then the end of the step before.
    assert result["brightness"][0] == 0 < result["own"]
    assert result["switched"] == [False] * 3
    assert result["nearest"][1:] == [end - 1 for end in result["ends"][1:]]


ENVIRONMENTS = """
import json
import numpy as np
import torch
from omegaconf import OmegaConf
from benchmarks.dead_work.frames import COMMON_ENV_SETTINGS, difference, libero
section = {**COMMON_ENV_SETTINGS, "max_episode_steps": 100}
LiberoEnv, _ = libero(section, "libero_spatial", 64)

class Unbuilt(LiberoEnv):
    def _init_env(self):
        pass

def made(cls, environments, **more):
    return cls(OmegaConf.create({**section, **more}), environments, 0, 1, None)

def play(**more):
    env = made(LiberoEnv, 1, **more)
    np.random.seed(3)
    actions, shown, between = np.random.default_rng(0), [env.reset()[0]], []
    for _ in range(2):
        action = torch.from_numpy(actions.uniform(-0.5, 0.5, (1, 3, 7))).float()
        observations, *rest, infos = env.chunk_step(action)
        first, second, _ = (each["main_images"] for each in observations)
        between.append(torch.equal(first, second))
        shown.append((observations[-1], *rest, infos[-1]["episode"]))
    env.env.close()
    return shown, between

SKIP = {"skip_intermediate_renders": True}
stock, drawn = play()
skipping, kept = play(**SKIP)
print(json.dumps({
    "difference": difference(stock, skipping),
    "still": {"stock": any(drawn), "skipping": all(kept)},
    "with a video": made(Unbuilt, 1, **SKIP, video_cfg={"save_video": True}).skip_intermediate_renders,
}))
"""


def test_rlinfs_environments_show_the_same_where_steps_between_are_not_drawn(found):
    result = found(ENVIRONMENTS)
    assert result["difference"] is None
    assert result["still"] == {"stock": False, "skipping": True}
    assert not result["with a video"]


SCENES = """
import json
from types import SimpleNamespace
from benchmarks.dead_work.frames import COMMON_ENV_SETTINGS, libero
LiberoEnv, _ = libero({**COMMON_ENV_SETTINGS}, "libero_spatial", 64)

def seeds(resetting, **key):
    given = []
    env = SimpleNamespace(
        cfg=key, seed=5, num_envs=6, group_size=3, env=SimpleNamespace(seed=given.append)
    )
    LiberoEnv._seed_scenes(env, range(resetting))
    return given

print(json.dumps({
    "without": [seeds(6), seeds(2)],
    "with": [seeds(6, group_shares_scene=True), seeds(2, group_shares_scene=True)],
}))
"""


def test_members_of_a_group_get_one_seed_with_the_key_and_rlinfs_own_without(found):
    result = found(SCENES)
    assert result["without"] == [[30], [10]]
    assert result["with"] == [[[30, 30, 30, 33, 33, 33]]] * 2
