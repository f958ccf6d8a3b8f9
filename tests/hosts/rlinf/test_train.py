import os
from types import SimpleNamespace

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.compose import compose_config  # noqa: E402
from rlinf_async.hosts.rlinf import train as module  # noqa: E402
from rlinf_async.hosts.rlinf.hooks import PROCESS_HOOKS  # noqa: E402
from rlinf_async.hosts.rlinf.train import launch, train  # noqa: E402
from rlinf_async.hosts.rlinf.worker_process import EXT_MODULE, OWN_MODULE  # noqa: E402
from rlinf_async.ray_runtime.cluster import starting  # noqa: E402


@pytest.mark.parametrize("dashboard", [False, True])
def test_a_cluster_that_a_run_starts_serves_a_dashboard_only_if_asked_to(monkeypatch, dashboard):
    calls = []
    monkeypatch.setattr(starting.TERMINATION, "install", lambda: None)
    monkeypatch.setattr(starting, "require_token", lambda *_, **__: None)
    monkeypatch.setattr(ray, "init", lambda **given: calls.append(given) or SimpleNamespace(dashboard_url=""))
    monkeypatch.setattr(module, "_run", lambda *_, **__: ray.init(address="auto", namespace="n"))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    launch(None, None, dashboard=dashboard)
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(starting, "connection_error", lambda place: None)
    launch(None, None, dashboard=dashboard)  # joins a cluster, which is as it is
    assert [call.get("include_dashboard") for call in calls] == [dashboard, None]


@pytest.mark.parametrize("mode", ["off", "full"])
@pytest.mark.parametrize("logs", [False, True])
def test_a_run_that_splits_its_workers_logs_has_the_server_that_rlinf_asks_for_them(monkeypatch, mode, logs):
    calls = []
    monkeypatch.setattr(module, "launch", lambda *_, **given: calls.append(given["dashboard"]))
    train(compose_config("maniskill_ppo_mlp", [f"async.mode={mode}", f"+runner.per_worker_log={logs}"]))
    assert calls == [logs]


@pytest.mark.parametrize("mode", ["off", "full"])
def test_workers_load_this_package_even_where_nothing_in_the_config_is_ours(monkeypatch, mode):
    monkeypatch.setenv(EXT_MODULE, OWN_MODULE)  # so that what the run sets is taken back
    monkeypatch.delenv(EXT_MODULE)
    seen = []
    monkeypatch.setattr(module, "_run", lambda *args, **workers: seen.append(os.environ.get(EXT_MODULE)))
    train(compose_config("maniskill_ppo_mlp", [f"async.mode={mode}"]))
    assert seen == [OWN_MODULE]


@pytest.mark.parametrize("mode", ["off", "full"])
def test_a_run_with_a_level_on_is_ours_where_hydra_does_not_find_its_plugins_either(monkeypatch, mode):
    monkeypatch.setenv(EXT_MODULE, OWN_MODULE)
    cfg = compose_config("maniskill_ppo_mlp", [f"async.mode={mode}"])
    present = PROCESS_HOOKS.installed
    PROCESS_HOOKS.remove()
    seen = []
    monkeypatch.setattr(module, "_run", lambda *args, **workers: seen.append(PROCESS_HOOKS.installed))
    try:
        train(cfg)
    finally:
        PROCESS_HOOKS.remove()
        if present:
            PROCESS_HOOKS.install()
    assert seen == [mode == "full"]


def test_an_engine_that_rlinfs_script_chooses_is_not_replaced_by_another_in_silence(monkeypatch):
    monkeypatch.setattr(module, "_run", lambda *_, **__: pytest.fail("nothing may start"))
    cfg = compose_config("maniskill_ppo_mlp", ["async.mode=full", "+rollout.rollout_backend=phyai"])
    with pytest.raises(ValueError, match=r"rollout.rollout_backend=phyai.*run RLinf's train_embodied_agent"):
        train(cfg)
