import re
from pathlib import Path

import rlinf_async
from rlinf_async.observe.kinds import SPAN_KINDS
from rlinf_async.observe.processes import Process, kind_and_rank

RECORDED = re.compile(r"""spans\.(?:span|add)\(\s*"([^"]+)\"""")


def test_every_kind_that_a_run_records_stands_in_the_table_and_no_other():
    package = Path(rlinf_async.__file__).parent
    recorded = [
        kind
        for room in ("loops", "wire", "ray_runtime", "hosts")
        for path in (package / room).rglob("*.py")
        for kind in RECORDED.findall(path.read_text())
    ]
    assert set(recorded) == SPAN_KINDS.keys()


def test_processes_are_known_by_their_names():
    assert [kind_and_rank(process.numbered(12)) for process in Process] == [(one, 12) for one in Process]
    assert kind_and_rank(Process.DRIVER) == ("driver", None)
    assert kind_and_rank("x 1 y") == ("x 1 y", None)
