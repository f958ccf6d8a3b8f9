import os
import time
from pathlib import Path

import pytest

from rlinf_async.lab.bench.cpu import CpuMeter

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """A folder like /proc, with the processes that it is told of."""

    def __init__(self, path):
        self.path = path

    def uses(self, number, seconds, *, environment="", started=1, name="ray::worker"):
        folder = self.path / str(number)
        folder.mkdir(exist_ok=True)
        user, system = seconds * TICKS - 1, 1
        fields = ["S", *"0" * 10, str(int(user)), str(system), *"0" * 6, str(started), "0"]
        (folder / "stat").write_text(f"{number} ({name}) {' '.join(fields)}\n")
        (folder / "environ").write_bytes(environment.encode().replace(b" ", b"\0"))

    def ends(self, number):
        for file in (self.path / str(number)).iterdir():
            file.unlink()
        (self.path / str(number)).rmdir()

    def has_used(self, seconds):
        idle = 10**6
        (self.path / "stat").write_text(f"cpu  {int(seconds * TICKS)} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3\n")


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "self").mkdir()
    return Machine(tmp_path)


@pytest.fixture
def meter(machine):
    return CpuMeter("RUN=7", proc=machine.path)


def test_what_the_processes_of_a_run_used_between_two_moments(machine, meter):
    machine.uses(1, 100.0)
    machine.uses(2, 3.0, environment="HOME=/ RUN=7 A=b", name="odd) name (")
    machine.uses(3, 5.0, environment="RUN=77")
    machine.has_used(200.0)
    meter.look(10.0)
    machine.uses(2, 7.0, environment="HOME=/ RUN=7 A=b", name="odd) name (")
    machine.uses(4, 2.0, environment="RUN=7")
    machine.has_used(216.0)
    meter.look(20.0)
    assert meter.between(10.0, 20.0).run_s == pytest.approx(6.0)
    assert meter.between(10.0, 20.0).others == pytest.approx((16.0 - 6.0) / 10.0)
    assert meter.between(12.5, 15.0).run_s == pytest.approx(6.0 / 4)


def test_what_a_process_used_before_it_ended_is_kept_and_its_number_may_come_again(machine, meter):
    machine.has_used(0.0)
    meter.look(0.0)
    machine.uses(2, 3.0, environment="RUN=7")
    meter.look(1.0)
    machine.ends(2)
    meter.look(2.0)
    machine.uses(2, 8.0, environment="RUN=8", started=2)
    meter.look(3.0)
    assert meter.between(0.0, 3.0).run_s == pytest.approx(3.0)


def test_nothing_is_known_of_a_time_at_which_nobody_looked(machine, meter):
    machine.has_used(0.0)
    meter.look(1.0)
    meter.look(2.0)
    assert meter.between(1.0, 2.0) is not None
    assert meter.between(0.5, 2.0) is None
    assert meter.between(1.0, 2.5) is None


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc on this system")
def test_a_process_of_this_machine_is_known_by_the_environment_that_it_was_started_with():
    mark = Path("/proc/self/environ").read_text().split("\0", 1)[0]
    meter = CpuMeter(mark)
    meter.look(0.0)
    began = time.process_time()
    while time.process_time() < began + 0.2:
        pass
    meter.look(1.0)
    assert meter.between(0.0, 1.0).run_s >= 0.1
