import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.observe.reading.faults import read_faults
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import facts_of, find_newest
from rlinf_async.ray_runtime.checkpoints.other_rates import RATES_FACT
from rlinf_async.ray_runtime.driver import saver as module
from rlinf_async.ray_runtime.driver.saver import SaveError, Saver
from rlinf_async.ray_runtime.processes.learner_rank import LearnerRank

PLAN = ShardPlan(total_envs=8, env_workers=1, inference_ranks=1, learner_ranks=2, shards_per_worker=2)


class Fleet:
    """Two learner ranks and a coordinator; a call is what it will return, or None while it goes on."""

    def __init__(self):
        self.errors = {"try_to_save": [None, None], "save_buffer": [None]}
        self.told = []
        self.hangs = set()

    def call(self, name, method, *arguments):
        said = method.__name__
        return [SimpleNamespace(name=(said, rank), error=e) for rank, e in enumerate(self.errors[said])]

    def run(self, name, method, *arguments):
        self.told.append((name, method.__name__, *arguments))
        if method is LearnerRank.known_premise:
            return [{"keeps_values": True}] * 2
        if name == "env" or method is LearnerRank.resume_premise:
            return [None]
        (Path(*arguments) / "buffer").mkdir()
        return self.wait(self.call(name, method, *arguments), method.__name__)

    def run_on_living(self, name, method, *arguments):
        self.told.append((name, method.__name__, *arguments))
        return [{"2": [{"0/1": []}]}, None]

    def wait(self, calls, what):
        assert all(call.name not in self.hangs for call in calls)
        return [call.error for call in calls]

    def first(self, calls, what):
        assert any(call.name not in self.hangs for call in calls)

    def ended(self, calls, seconds):
        return all(call.name not in self.hangs for call in calls)


class Hooks:
    def __init__(self, parent, saver):
        self.parent, self.saver, self.done = parent, saver, []

    def checkpoint(self, step):
        return self.parent / f"global_step_{step}"

    def save(self, step, folder):
        (folder / "actor").write_bytes(b"x" * 1000)
        self.saver().save_learners(str(folder), step)

    def saved(self, step, folder):
        assert folder.is_dir()
        self.done.append(step)


class Clock:
    def __init__(self):
        self.now, self.waits = 1000.0, []

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def given(tmp_path):
    """A saver, its fleet, its hooks, and what it has said."""

    def build(*, renews=False, **advanced):
        fleet, said = Fleet(), []
        asynchrony = SimpleNamespace(
            advanced=AdvancedConfig(**advanced),
            max_staleness=1,
        )
        settings = SimpleNamespace(asynchrony=asynchrony, plan=PLAN, renews=renews)
        hooks = Hooks(tmp_path / "checkpoints", lambda: saver)
        clock = Clock()
        saver = Saver(
            fleet,
            settings,
            hooks,
            tmp_path,
            rate_settings={"steps": 4},
            say=said.append,
            now=lambda: clock.now,
            wait=clock.wait,
        )
        saver.clock = clock
        return saver, fleet, hooks, said

    return build


def test_a_checkpoint_is_whole_before_anybody_is_told(given):
    saver, _, hooks, said = given()
    assert saver.save(2)
    assert (saver.saved, hooks.done, said) == (2, [2], [])
    assert find_newest(hooks.parent).step == 2
    assert facts_of(hooks.checkpoint(2))[RATES_FACT] == {"steps": 4}


@pytest.mark.parametrize("renews", [False, True])
def test_what_processes_know_of_a_run_is_saved_and_told_again(given, renews):
    saver, fleet, hooks, _ = given(renews=renews)
    assert saver.save(2)
    # A rollout for the batch that waits for this version, too, may have ended already.
    assert ("env", "read_episodes", range(2, 4)) in fleet.told
    fleet.told.clear()
    kept = frozenset({(2, "0/1")})
    saver.resume_known(hooks.checkpoint(2), kept)
    assert fleet.told == [
        ("env", "resume_episodes", [{"2": [{"0/1": []}]}, {}], kept),
        ("learner", "resume_premise", {"keeps_values": True}),
    ]


def test_what_comes_before_the_name_of_a_checkpoint_comes_after_all_of_it(given):
    saver, fleet, hooks, _ = given()
    seen = []

    def look():
        (aside,) = hooks.parent.iterdir()
        seen.append((aside.name, (aside / "complete.json").is_file(), list(hooks.done)))

    assert saver.save(2, before=look)
    assert seen == [(".global_step_2.writing", True, [])]
    fleet.errors["save_buffer"] = ["OSError: no space left on device"]
    saver.clock.now += 60
    assert not saver.save(4, before=look)
    assert len(seen) == 1


def test_as_many_are_kept_as_asked(given):
    saver, _, hooks, said = given(keep_checkpoints=2)
    for step in (1, 2, 3):
        saver.save(step)
    assert sorted(path.name for path in hooks.parent.iterdir()) == ["global_step_2", "global_step_3"]
    assert [str(hooks.parent / "global_step_1") in remark for remark in said] == [True]


@pytest.mark.parametrize("who", ["try_to_save", "save_buffer"])
def test_a_failure_is_recorded_and_said_and_the_run_goes_on(given, tmp_path, who):
    saver, fleet, hooks, said = given()
    saver.save(2)
    fleet.errors[who] = ["OSError: no space left on device"] * len(fleet.errors[who])
    assert not saver.save(4)
    assert (saver.saved, saver.failed, hooks.done) == (2, 1, [2])
    goes_on = "the run goes on, and tries again in 10 s at the earliest"
    assert f"no space is left on {hooks.parent} (" in said[0]
    assert f"MB are free); {goes_on} (1 of 3" in said[0]
    (fault,) = read_faults(tmp_path)
    assert (fault.what, fault.action) == ("save failed", goes_on)
    assert find_newest(hooks.parent).step == 2
    fleet.errors[who] = [None] * len(fleet.errors[who])
    saver.clock.now += 9.5
    assert not saver.save(5)
    assert len(said) == 1
    saver.clock.now += 0.5
    assert saver.save(6)
    assert (saver.saved, saver.failed) == (6, 0)


def test_too_many_in_a_row_end_the_run(given):
    saver, fleet, _, _ = given()
    fleet.errors["try_to_save"] = ["OSError: read-only", "OSError: read-only"]
    for step in range(2, 50):  # a step takes a second
        saver.clock.now += 1
        if saver.failed == 2 and saver.clock.now >= saver._next_try_at:
            break
        assert not saver.save(step)
    # Ten seconds after the first, and twenty after the second.
    assert step == 2 + 30
    with pytest.raises(SaveError, match=r"learner 1: OSError: read-only \(tried 3 times in 30 s\)"):
        saver.save(step)


def test_the_last_one_is_waited_for(given):
    saver, fleet, hooks, _ = given()
    fleet.errors["try_to_save"] = ["OSError: read-only", "OSError: read-only"]
    with pytest.raises(SaveError, match=r"after step 9 could not be written: .*tried 3 times in 30 s\)$"):
        saver.save(9, last=True)
    assert saver.clock.waits == [10.0, 20.0]

    def heal(seconds):
        fleet.errors["try_to_save"] = [None, None]

    saver.failed, saver._wait = 0, heal
    assert saver.save(9, last=True)
    assert find_newest(hooks.parent).step == 9


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0\nframe #0: f",
        "CheckpointException: ranks:dict_keys([0])\n" + "Traceback\n" * 25,
    ],
)
def test_a_full_disk_is_named_in_one_line_whatever_a_library_says_of_it(given, monkeypatch, error):
    saver, fleet, hooks, said = given()
    fleet.errors["try_to_save"] = [error, None]
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert not saver.save(2)
    assert f"after step 2 could not be written: no space is left on {hooks.parent} (0 MB are free)" in said[0]
    assert "\n" not in said[0]


def test_where_the_last_one_would_not_fit_the_learners_are_not_asked(given, monkeypatch):
    saver, fleet, _, said = given()
    saver.save(2)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=900))
    monkeypatch.setattr(fleet, "call", pytest.fail)
    assert not saver.save(4)
    assert "the checkpoint before took" in said[0]


def test_a_place_that_cannot_be_written_is_a_failure_like_others(given):
    saver, _, hooks, said = given()
    hooks.parent.write_text("a file")
    assert not saver.save(2)
    assert "could not be written" in said[0]


def test_ranks_that_wait_for_one_that_has_failed_end_the_run(given, monkeypatch):
    saver, fleet, _, _ = given()
    monkeypatch.setattr(module.ray, "get", lambda calls: [call.error for call in calls])
    fleet.errors["try_to_save"] = ["OSError: no space", None]
    fleet.hangs = {("try_to_save", 1)}
    with pytest.raises(RuntimeError, match="no space, and the other ranks wait for it"):
        saver.save(2)


def test_a_disk_that_does_not_let_an_old_one_go_does_not_end_the_run(given, monkeypatch):
    def failing(parent, keep, **_):
        raise OSError(errno.EIO, "Input/output error")

    saver, _, hooks, said = given(keep_checkpoints=1)
    monkeypatch.setattr(module, "prune", failing)
    assert saver.save(1)
    assert saver.save(2)
    assert (find_newest(hooks.parent).step, saver.failed) == (2, 0)
    assert "cannot be removed: Input/output error" in said[-1]


def test_an_error_after_the_rename_is_a_failure_like_others(given, monkeypatch):
    def failing(step, folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    saver, _, hooks, said = given()
    monkeypatch.setattr(hooks, "saved", failing)
    assert not saver.save(2)
    assert "MB are free); the run goes on" in said[0]
    assert f"no space is left on {hooks.parent} (" in said[0]
