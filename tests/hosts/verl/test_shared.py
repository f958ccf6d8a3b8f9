"""The processes of a run under veRL are forked from one template."""

import pytest

pytest.importorskip("verl", reason="veRL is not installed")

import ray
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from rlinf_async.hosts.verl.shared import OF_A_LEARNER_RANK, SHARED
from rlinf_async.ray_runtime.cluster.template import TESTED_VERSIONS
from tests.ray_runtime.cluster.templates import started, template, worker_in

pytestmark = pytest.mark.skipif(
    not ray.__version__.startswith(TESTED_VERSIONS), reason="this Ray is not forked"
)


def test_all_processes_of_a_run_are_forked_with_what_they_import(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in OF_A_LEARNER_RANK:  # tests of learner ranks in this process leave some
        monkeypatch.delenv(name, raising=False)
    worker = worker_in(tmp_path)
    of_all = get_ppo_ray_runtime_env()["env_vars"]
    of_a_rank = dict.fromkeys(OF_A_LEARNER_RANK, "1")
    with template(SHARED, of_all) as (name, process):
        others, rank = started(worker, name, **of_all), started(worker, name, **of_all, **of_a_rank)
    assert [others["parent"], rank["parent"]] == [process.pid] * 2
    assert rank["rank"] == "1"
    assert set(SHARED.modules).issubset(rank["modules"])
