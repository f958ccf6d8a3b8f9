"""A framework's metrics logger that cannot write costs a warning, and not the run."""

import errno
from itertools import pairwise

import pytest

from rlinf_async.observe.events import StepReport
from rlinf_async.observe.meters import Spread
from rlinf_async.observe.metrics_outlet import LONGEST_REST, MetricsOutlet
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog


def test_the_metrics_of_a_step_reach_the_file_and_the_loggers_of_a_framework(tmp_path):
    given, none = [], Spread()
    log = RunLog(RunDir(tmp_path), loggers=lambda batch, metrics: given.append((batch, metrics)))
    report = StepReport(
        step=3,
        total=4,
        seconds=2.0,
        env_steps=10,
        episode_return=None,
        success=None,
        busy={},
        staleness=none,
        batch_size=none,
        batch_wait=none,
    )
    log.step(report, {"train/loss": 1.0}, {"env/return": 0.5})
    ((batch, metrics),) = given
    (line,) = RunReader(tmp_path).metrics()
    assert (batch, line.pop("step")) == (2, 3)
    assert metrics == line == {"train/loss": 1.0, "env/return": 0.5, **report.as_metrics()}


class Disk:
    """A disk on which loggers write batches; while it is full, the one that writes breaks for good."""

    def __init__(self):
        self.full, self.written, self.loggers, self.said, self.tries = False, [], [], [], []

    def logger(self):
        if self.full and self.loggers:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.loggers.append({"broken": False, "closed": False})
        return self.loggers[-1]

    def write(self, logger, batch, metrics):
        self.tries.append(batch)
        logger["broken"] |= self.full
        if logger["broken"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.written.append(batch)

    def close(self, logger):
        logger["closed"] = True
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def outlet(self):
        return MetricsOutlet(self.logger, write=self.write, close=self.close, say=self.said.append)


def test_a_full_disk_is_said_once_and_what_comes_after_it_is_written_by_a_new_logger():
    disk = Disk()
    outlet = disk.outlet()
    for batch in range(40):
        disk.full = 3 <= batch < 10
        outlet.log(batch, {"loss": 1.0})
    assert disk.written[:3] == [0, 1, 2]
    resumed = disk.written[3]
    assert 10 <= resumed < 20
    assert disk.written[3:] == list(range(resumed, 40))
    failed, again = disk.said
    assert "batch 3" in failed
    assert "No space left on device" in failed
    assert f"batch {resumed}" in again
    assert [logger["closed"] for logger in disk.loggers] == [True, False]


def test_a_logger_that_never_comes_back_is_tried_less_and_less_often():
    def unavailable(logger, batch, metrics):
        tries.append(batch)
        raise ConnectionError("the server is away")

    tries, said = [], []
    outlet = MetricsOutlet(object, write=unavailable, close=lambda logger: None, say=said.append)
    for batch in range(1000):
        outlet.log(batch, {})
    rests = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert rests[:4] == [1, 2, 4, 8]
    assert set(rests[6:]) == {LONGEST_REST}
    assert len(said) == 1


def test_every_part_of_a_step_is_left_out_or_written_together():
    disk = Disk()
    outlet = disk.outlet()
    disk.full = True
    for batch in range(2):
        for _ in range(3):
            outlet.log(batch, {})
    assert disk.tries == [0]


@pytest.mark.parametrize("full", [False, True])
def test_the_end_of_a_run_is_none_of_a_logger_that_cannot_be_closed(full):
    disk = Disk()
    outlet = disk.outlet()
    outlet.log(0, {})
    disk.full = full
    outlet.close()
    outlet.close()
    assert disk.loggers[0]["closed"]
    assert len(disk.said) == full


def test_tensorboard_on_a_disk_that_is_full_for_a_while(tmp_path, monkeypatch):
    """TensorBoard writes in a thread that ends by the first error, and raises that in every call after it."""
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
    from tensorboard.summary.writer import record_writer

    state = {"full": False}
    write = record_writer.RecordWriter.write

    def on_disk(self, data):
        if state["full"]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(record_writer.RecordWriter, "write", on_disk)
    monkeypatch.setattr("threading.excepthook", lambda facts: None)
    said = []

    def log(writer, batch, metrics):
        for name, value in metrics.items():
            writer.add_scalar(name, value, batch)
        writer.flush()

    def close(writer):
        writer.close()

    outlet = MetricsOutlet(
        lambda: tensorboard.SummaryWriter(str(tmp_path)), write=log, close=close, say=said.append
    )
    outlet.log(0, {"loss": 1.0})
    state["full"] = True
    outlet.log(1, {"loss": 1.0})
    state["full"] = False
    for batch in range(2, 6):
        outlet.log(batch, {"loss": 1.0})
    outlet.close()
    assert "No space left on device" in said[0]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 3, 4, 5]
