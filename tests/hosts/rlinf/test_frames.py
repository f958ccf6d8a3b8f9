"""RLinf's environments that draw what is looked at: which do, and how their steps are marked."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlinf_async.hosts.kit.playing import draw_last_only
from rlinf_async.hosts.rlinf.frames import isaaclab, libero, maniskill, metaworld
from rlinf_async.hosts.rlinf.frames.libero import StillCameras, keeps_time
from rlinf_async.hosts.rlinf.skipped_work import watcher, with_last_frames

SUBSTEPS = 5


class ChunkedEnv:
    """As RLinf's: `chunk_step` calls `step` for each action, and what ended is reset after the last."""

    num_envs = 2
    ends = False

    def __init__(self):
        self._init_env()

    def chunk_step(self, actions):
        observations = [self.step(actions[:, i]) for i in range(actions.shape[1])]
        if self.ends:
            observations[-1] = self.reset([0])
        return observations, "rewards", "terminations", "truncations", ["info"] * len(observations)

    def get_env_fns(self):
        return []


class Vector:
    """Records what is sent to simulators, as RLinf's vector environments."""

    def __init__(self, size):
        self.sent = []
        self.workers = [
            SimpleNamespace(render=lambda i=i: self.drawn(i), get_env_attr=lambda _, i=i: self.drawing[i])
            for i in range(size)
        ]
        self.pictures, self.drawing = 0, [libero.Drawing(0, 0.0)] * size

    def drawn(self, number):
        self.pictures += 1
        return self.pictures, number

    def render(self):
        return [worker.render() for worker in self.workers]

    def step(self, action, id=None):
        self.sent.append(["old" if isinstance(each, libero.Unseen) else "new" for each in action])
        return self.sent[-1]

    def reset(self, id=None, unseen=False):
        self.sent.append("old reset" if unseen else "new reset")

    def set_init_state(self, init_state=None, id=None):
        self.sent.append(
            ["old state" if isinstance(each, libero.Unseen) else "new state" for each in init_state]
        )


class LiberoLike(ChunkedEnv):
    def _init_env(self):
        self.env = Vector(self.num_envs)

    def step(self, actions=None, auto_reset=True):
        return self.env.step(actions)

    def reset(self, env_idx=(0, 1)):
        self.env.reset(id=env_idx)
        self.env.set_init_state(init_state=list(env_idx), id=env_idx)
        for _ in range(3):
            observation = self.env.step(np.zeros((len(env_idx), 7)), env_idx)
        return observation


class MetaWorldLike(ChunkedEnv):
    _init_env = LiberoLike._init_env

    copies = 0

    def _wrap_obs(self, raw):
        self.copies += 1
        return self.env.render()

    def step(self, actions=None, auto_reset=True):
        return self._wrap_obs("raw")

    def reset(self, env_idx=None):
        return self._wrap_obs("raw")


ACTIONS = torch.zeros(2, 3, 7)


def test_rlinfs_libero_marks_all_but_the_last_step_of_a_decision():
    env = libero.adapt(LiberoLike)()
    env.draw_last_only()
    observations, *rest = env.chunk_step(ACTIONS)
    assert env.env.sent == [["old"] * 2, ["old"] * 2, ["new"] * 2]
    assert observations == [None, None, ["new"] * 2]
    assert rest == ["rewards", "terminations", "truncations", ["info"] * 3]
    assert (env.frames_drawn, env.frames_left_out) == (2, 4)


def test_the_seconds_that_liberos_processes_have_drawn_are_counted_once_and_of_each_of_their_simulators():
    env = libero.adapt(LiberoLike)()
    env.env.drawing = [libero.Drawing(0, 1.0), libero.Drawing(0, 2.0)]
    env.chunk_step(ACTIONS)
    assert env.frames_drawn_s == 0  # nobody has asked for last frames
    env.draw_last_only()
    env.chunk_step(ACTIONS)
    assert env.frames_drawn_s == 3.0
    env.env.drawing = [libero.Drawing(0, 1.5), libero.Drawing(1, 2.25)]  # a simulator of the next task
    env.chunk_step(ACTIONS)
    assert env.frames_drawn_s == 3.0 + 0.5 + 2.25


def test_of_a_reset_of_libero_only_the_last_of_its_steps_is_drawn_once_their_number_is_known():
    env = libero.adapt(LiberoLike)()
    env.draw_last_only()
    env.reset()
    assert env.env.sent == ["new reset", ["new state"] * 2, *[["new"] * 2] * 3]
    env.env.sent.clear()
    env.ends = True
    observations, *_ = env.chunk_step(ACTIONS)
    assert env.env.sent[2:] == [["new"] * 2, "old reset", ["old state"], ["old"], ["old"], ["new"]]
    assert observations[-1] == ["new"]
    assert (env.frames_drawn, env.frames_left_out) == (10 + 2 + 1, 4 + 4)


@pytest.mark.parametrize("like", [LiberoLike, MetaWorldLike])
def test_environments_that_nobody_has_told_draw_as_rlinfs_own(like):
    module = libero if like is LiberoLike else metaworld
    env, stock = module.adapt(like)(), like()
    assert env.reset() == stock.reset()
    assert env.chunk_step(ACTIONS) == stock.chunk_step(ACTIONS)


def test_rlinfs_metaworld_draws_the_last_step_and_shows_no_old_picture(monkeypatch):
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr(metaworld, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    env = metaworld.adapt(MetaWorldLike)()
    env.draw_last_only()
    env.reset()
    observations, *_ = env.chunk_step(ACTIONS)
    assert observations == [None, None, [(3, 0), (4, 1)]]
    assert (env.frames_drawn, env.frames_left_out) == (4, 4)
    assert env.frames_drawn_s == 4 * 3
    assert env.copies == 2  # the reset's observation, and that of the last step


def test_what_is_reset_after_the_last_step_of_metaworld_is_drawn_again():
    env = metaworld.adapt(MetaWorldLike)()
    env.draw_last_only()
    env.reset()
    env.ends = True
    observations, *_ = env.chunk_step(ACTIONS)
    assert observations[-1] == [(5, 0), (6, 1)]


@pytest.mark.parametrize("module", [isaaclab, libero, maniskill, metaworld])
def test_a_class_that_lacks_what_an_adapter_changes_is_left_to_draw(module):
    assert module.adapt(type("Other", (), {"chunk_step": print})) is None


class Camera:
    """An observable of robosuite, of a picture that is the number of the physics step."""

    modality = "image"

    def __init__(self, rate=1.0):
        self._sampling_timestep, self._current_observed_value = rate, 0
        self.taken = 0
        self._sensor = self.take

    def take(self, _):
        self.taken += 1
        return self.taken

    def is_enabled(self):
        return True

    def update(self, force):
        if force:
            self._current_observed_value = self._sensor({})


class Scene:
    control_timestep, model_timestep = 1.0, 1.0 / SUBSTEPS

    def __init__(self, rate=1.0):
        self._observables = {
            "picture": Camera(rate),
            "angle": SimpleNamespace(modality="proprio", update=print),
        }

    def _update_observables(self, force=False):
        self._observables["picture"].update(force)


def test_a_still_camera_keeps_its_picture_and_its_sensor():
    scene = Scene()
    cameras, camera = StillCameras(scene), scene._observables["picture"]
    sensor = camera._sensor
    scene._update_observables(force=True)
    with cameras.still():
        scene._update_observables(force=True)
    assert (camera._current_observed_value, camera.taken) == (1, 1)
    assert camera._sensor is sensor
    scene._update_observables(force=True)
    assert (camera._current_observed_value, camera.taken) == (2, 2)


def test_the_seconds_of_sensors_are_those_of_pictures_that_are_drawn(monkeypatch):
    scene, clock = Scene(), iter(range(0, 100, 7))
    monkeypatch.setattr(libero, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    cameras, camera = StillCameras(scene), scene._observables["picture"]
    sensor = camera._sensor
    scene._update_observables(force=True)
    assert cameras.drawn_s == 7
    with cameras.still():
        scene._update_observables(force=True)
    assert (cameras.drawn_s, camera._sensor) == (7, sensor)
    scene._update_observables(force=True)
    assert (cameras.drawn_s, camera._current_observed_value) == (14, 2)


def test_cameras_that_sample_at_another_rate_than_steps_are_drawn_at_every_step():
    scene = Scene(rate=0.7)
    cameras = StillCameras(scene)
    with cameras.still():
        scene._update_observables(force=True)
    assert scene._observables["picture"].taken == 1
    assert not keeps_time(scene)
    assert not keeps_time(object())


SENSORS = {"base_camera": {"rgb": torch.ones(1)}}


@pytest.mark.parametrize(
    "read",
    [
        lambda sensors: sensors["base_camera"],
        dict,
        list,
        len,
        lambda sensors: {**sensors},
        lambda sensors: sensors.items(),
        lambda sensors: sensors.get("base_camera"),
        lambda sensors: "base_camera" in sensors,
        lambda sensors: sensors.copy(),
        lambda sensors: sensors == SENSORS,
        repr,
        bool,
    ],
)
def test_sensors_that_a_reward_reads_are_taken_whatever_the_way(read):
    sensors = maniskill.UnreadSensors(lambda: dict(SENSORS))
    assert read(sensors) == read(dict(SENSORS)) or isinstance(read(sensors), type({}.items()))
    assert not sensors.let_go()


def test_sensors_that_nobody_reads_are_not_taken():
    def fail():
        raise AssertionError("taken")

    assert maniskill.UnreadSensors(fail).let_go()


@pytest.mark.parametrize(
    ("video", "collects", "key"),
    [
        ({"save_video": False}, None, None),
        ({"save_video": True}, None, "video_cfg.save_video"),
        ({"save_video": True, "decisions_only": True}, None, None),
        ({"save_video": False}, {"enabled": True}, "data_collection.enabled"),
    ],
)
def test_what_looks_at_every_frame_is_known_by_its_key(video, collects, key):
    assert watcher({"video_cfg": video, "data_collection": collects}) == key


def test_the_adapter_of_an_environment_is_found_by_its_type():
    adapted = with_last_frames(LiberoLike, {"env_type": "libero"})
    assert issubclass(adapted, libero.LiberoFrames)
    assert with_last_frames(LiberoLike, {"env_type": "calvin"}) is LiberoLike
    assert with_last_frames(LiberoLike, {"env_type": "libero", "env_class": "points"}) is LiberoLike


def test_environments_without_the_method_are_left_alone_and_wrapped_ones_are_told():
    env = libero.adapt(LiberoLike)()
    draw_last_only(object())
    draw_last_only(SimpleNamespace(unwrapped=env))
    assert env.chunk_step(ACTIONS)[0][0] is None
