"""Which Ray cluster a run needs, by its config."""

import pytest
from omegaconf import OmegaConf

from rlinf_async.hosts.host import load


@pytest.mark.parametrize(
    ("host", "config", "needs"),
    [
        ("local", {}, "none"),
        ("rlinf", {"cluster": {"num_nodes": 1}}, "own"),
        ("rlinf", {"cluster": {}}, "own"),
        ("rlinf", {"cluster": {"num_nodes": 2}}, "existing"),
        ("rlinf", {"cluster": {"num_nodes": "two"}}, "existing"),
        ("verl", {"trainer": {"nnodes": 1}, "ray_kwargs": {"ray_init": {"num_cpus": 16}}}, "own"),
        ("verl", {"trainer": {"nnodes": 1}}, "own"),
        ("verl", {"trainer": {"nnodes": 2}}, "existing"),
        ("verl", {"trainer": {"nnodes": 1}, "ray_kwargs": {"ray_init": {"address": "auto"}}}, "existing"),
    ],
)
def test_a_run_can_start_its_own_where_it_has_one_node_and_names_no_address(host, config, needs):
    assert load(host).ray_cluster(OmegaConf.create(config)) == needs
