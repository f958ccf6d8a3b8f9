"""Machines of namespaces for the benchmark of several nodes, and how its results are read."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import nodes
from benchmarks.nodes.__main__ import CASES_BY_NAME, DECISIONS_PER_ENV, ENVS_PER_NODE
from benchmarks.nodes.machines import BOOT_ID_FILE, machines, unavailable
from benchmarks.nodes.tables import over_linear, picture_bytes, tables
from rlinf_async.compose import compose_config
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf.explain import explain

RESULTS = {
    "1 node, 64 px": {"decisions_per_s": 50.0, "load": 1.0, "bytes_per_decision": [[0, 0]]},
    "3 nodes, 64 px": {
        "decisions_per_s": 120.0,
        "load": 1.0,
        "bytes_per_decision": [[1, 2000], [3, 4], [5, 6]],
    },
    "link cut": {"still_s": 61.5, "noticed_s": 62.5, "said": ["gone"]},
}


@pytest.mark.parametrize("name", CASES_BY_NAME)
def test_every_environment_of_a_case_has_the_same_share_on_its_node(name):
    case = CASES_BY_NAME[name]
    _, config, *overrides = case.settings()
    facts = explain(compose_config(config, overrides), AssumedCluster(gpus=0, nodes=case.nodes))
    assert facts["shards"]["total"] == ENVS_PER_NODE * facts["ranks"]["env"]
    assert (
        facts["batch"]["samples_per_step"]
        == case.samples
        == ENVS_PER_NODE * DECISIONS_PER_ENV * facts["ranks"]["env"]
    )
    assert facts["cluster"]["nodes"] == case.nodes


def test_a_row_of_throughput_is_over_that_of_one_node_times_the_nodes():
    assert over_linear(RESULTS, "3 nodes, 64 px") == 0.8
    assert over_linear({"3 nodes, 64 px": RESULTS["3 nodes, 64 px"]}, "3 nodes, 64 px") is None
    assert picture_bytes("apart, 224 px") == 224 * 224 * 3
    shown = tables(RESULTS)
    assert "| 3 nodes, 64 px | 120 | 0.80 | 1 |" in shown
    assert "| 1 node, 64 px | 12,288 | 0 sent, 0 received | – | – |" in shown
    assert "| link cut | 61.5 s | 62.5 s | gone |" in shown


def test_the_page_has_the_tables_of_the_committed_results():
    folder = Path(nodes.__file__).parent
    assert tables(json.loads((folder / "results.json").read_text())) in (folder / "README.md").read_text()


WHY = unavailable()
SERVE = """
import socket
listening = socket.create_server(('', 9))
print(flush=True)
listening.accept()[0].sendall(bytes(50_000))
"""
ASK = """
import socket
opened = socket.create_connection(('192.0.2.2', 9), 0.5)
print(sum(map(len, iter(lambda: opened.recv(9000), b''))))
"""


@pytest.mark.skipif(WHY is not None, reason=str(WHY))
def test_machines_have_memory_and_a_name_of_their_own_and_count_what_passes_their_link():
    with machines(3) as made:
        first, second, _ = made
        first.call("touch", "/dev/shm/mine")
        assert second.call("ls", "/dev/shm").split() == ["identity"]
        assert len({machine.call("cat", BOOT_ID_FILE) for machine in made}) == 3
        before = [machine.traffic() for machine in made]
        served = second.start("python3", "-c", SERVE, stdout=subprocess.PIPE)
        served.stdout.readline()
        assert first.call("python3", "-c", ASK).strip() == "50000"
        served.communicate()
        after = [machine.traffic() for machine in made]
        (_, got), (sent, _), third = [
            [now - then for now, then in zip(*both, strict=True)] for both in zip(after, before, strict=True)
        ]
        assert got > 50_000 < sent
        assert max(third) < 10_000
        second.cut()
        with pytest.raises(OSError, match="timed out"):
            first.call("python3", "-c", ASK)
