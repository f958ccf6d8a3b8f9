import os

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.compose import compose_config  # noqa: E402
from rlinf_async.hosts.rlinf import train as module  # noqa: E402
from rlinf_async.hosts.rlinf.hooks import EXT_MODULE, HOOKS, OURS  # noqa: E402
from rlinf_async.hosts.rlinf.train import _starting_ray, train  # noqa: E402


@pytest.fixture
def calls(monkeypatch):
    made = []
    monkeypatch.setattr(ray, "init", lambda **kwargs: made.append(kwargs))
    return made


@pytest.mark.parametrize("dashboard", [False, True])
def test_a_cluster_that_a_run_starts_serves_a_dashboard_only_if_asked_to(calls, monkeypatch, dashboard):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with _starting_ray(dashboard=dashboard):
        ray.init(address="auto", namespace="n")
    monkeypatch.delenv("RAY_ADDRESS")
    with _starting_ray(dashboard=dashboard):
        ray.init(namespace="n")
    assert [call["include_dashboard"] for call in calls] == [dashboard, dashboard]
    assert calls[0]["address"] == "auto"


def test_a_cluster_that_is_there_is_joined_as_it_is(calls, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with _starting_ray(dashboard=False):
        ray.init(address="auto", namespace="n")
    assert calls == [{"address": "auto", "namespace": "n"}]


def test_rays_own_start_is_back_afterwards(calls):
    before = ray.init
    with _starting_ray(dashboard=False):
        assert ray.init is not before
    assert ray.init is before


@pytest.mark.parametrize("mode", ["off", "full"])
def test_workers_load_this_package_even_where_nothing_in_the_config_is_ours(monkeypatch, mode):
    monkeypatch.setenv(EXT_MODULE, OURS)  # so that what the run sets is taken back
    monkeypatch.delenv(EXT_MODULE)
    seen = []
    monkeypatch.setattr(module, "_run", lambda *args, **workers: seen.append(os.environ.get(EXT_MODULE)))
    train(compose_config("maniskill_ppo_mlp", [f"async.mode={mode}"]))
    assert seen == [OURS]


@pytest.mark.parametrize("mode", ["off", "full"])
def test_a_run_with_a_level_on_is_ours_where_hydra_does_not_find_its_plugins_either(monkeypatch, mode):
    monkeypatch.setenv(EXT_MODULE, OURS)
    cfg = compose_config("maniskill_ppo_mlp", [f"async.mode={mode}"])
    present = HOOKS.installed
    HOOKS.remove()
    seen = []
    monkeypatch.setattr(module, "_run", lambda *args, **workers: seen.append(HOOKS.installed))
    try:
        train(cfg)
    finally:
        HOOKS.remove()
        if present:
            HOOKS.install()
    assert seen == [mode == "full"]
