"""Each process of `micro channels` takes itself to be on its node: else ranks answer other nodes first."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from benchmarks.micro import channels, takes
from rlinf_async.ray_runtime import handles
from rlinf_async.ray_runtime.processes import request_channel, request_clients, request_server
from rlinf_async.wire import connection


def test_every_side_is_on_the_node_of_its_process():
    sides = (connection, handles, request_channel, request_clients, request_server)

    async def where(pipe):
        return [side.this_node() for side in sides], connection.has_other_nodes()

    process, pipe = channels._begin("node 7", where)
    found = pipe.recv()
    process.join()
    assert found == (["node 7"] * len(sides), True)
    assert request_server.this_node() != "node 7"


def test_the_cost_of_a_take_is_measured_for_each_number_of_requests(monkeypatch):
    monkeypatch.setattr(takes, "WARM_UP_TAKES", 2)
    monkeypatch.setattr(takes, "MEASURED_TAKES", 3)
    monkeypatch.setattr(takes, "SIZES", (1, 3))
    measured = takes.measure(1)["us_per_take"]
    assert [size for size, costs in measured.items() if costs[0] > 0] == ["1", "3"]
