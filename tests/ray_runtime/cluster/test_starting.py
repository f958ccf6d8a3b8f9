"""Starting Ray: again where it does not come up in time."""

import logging
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

import ray
from ray._private import ray_constants, services
from ray._private.authentication import authentication_token_setup as tokens

from rlinf_async.core.failures import Terminated
from rlinf_async.ray_runtime.cluster import environment, starting
from rlinf_async.ray_runtime.cluster.starting import (
    RETRY_WAITS_S,
    RayNotJoined,
    RayNotStarted,
    RayNotThere,
    children,
    starting_ray,
    tried_again,
)
from rlinf_async.ray_runtime.driver.endings import ray_ending_of

STARTED = SimpleNamespace(dashboard_url="127.0.0.1:8265")
LATE = Exception("The current node timed out during startup.")


class Start:
    """Fails with each of `errors` in turn, then starts."""

    def __init__(self, *errors):
        self.errors, self.calls, self.asked = list(errors), [], []

    def __call__(self, **options):
        self.calls.append(options)
        if self.errors:
            raise self.errors.pop(0)
        return STARTED


def test_a_start_is_tried_again_with_growing_waits_that_are_said():
    said, waited = [], []
    started = tried_again(Start(LATE, LATE), say=said.append, wait=waited.append)
    assert (started, waited) == (STARTED, list(RETRY_WAITS_S))
    assert waited == sorted(waited)
    assert "timed out during startup" in said[0]
    assert "try 2 of 3" in said[0]


def test_after_the_last_try_there_is_one_sentence():
    start = Start(*[LATE] * 9)
    with pytest.raises(RayNotStarted, match=r"3 tries \(Exception: The current node timed out") as caught:
        tried_again(start, say=lambda text: None, wait=lambda seconds: None)
    assert len(start.calls) == 3
    assert caught.value.__cause__ is LATE


@pytest.mark.parametrize(
    "error", [ValueError("no"), TypeError("no"), ConnectionError("no"), KeyboardInterrupt()]
)
def test_what_another_try_does_not_mend_is_raised_at_once(error):
    start = Start(error)
    with pytest.raises(type(error)):
        tried_again(start, say=lambda text: None, wait=lambda seconds: None)
    assert len(start.calls) == 1


def test_what_a_failed_try_has_started_is_ended_and_nothing_else():
    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    mine, started = subprocess.Popen(sleeping), []
    try:

        def start():
            if started:
                return "a cluster"
            started.append(subprocess.Popen(sleeping))
            assert {mine.pid, started[0].pid} <= children()
            raise LATE

        tried_again(start, say=lambda text: None, wait=lambda seconds: None)
        assert started[0].wait(60) == -9
        assert mine.poll() is None
    finally:
        mine.kill()
        mine.wait()


@pytest.fixture
def init(monkeypatch, tmp_path):
    """Ray's own `init`, which fails once; there is no cluster on this machine, and every address answers."""
    start = Start(LATE)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(starting, "require_token", lambda environ, **how: start.asked.append(how))
    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(starting, "connection_error", lambda place: None)
    monkeypatch.setattr(starting, "RETRY_WAITS_S", (0.0,))
    monkeypatch.setattr(starting, "TERMINATION", SimpleNamespace(install=lambda: start.calls.append("heeds")))
    return start


@pytest.mark.parametrize("address", ["local", None])
def test_a_cluster_of_its_own_is_started_again_with_its_options(monkeypatch, init, address):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    given = {"address": "auto"} if address else {}
    options = {"include_dashboard": False}
    with starting_ray(say=lambda text: None, options=options), starting_ray(say=lambda text: None):
        ray.init(**given)
    assert init.calls == [{**given, **options}] * 2 + ["heeds"]
    assert ray.init is init
    assert init.asked == [{"shared": False}]


def test_a_template_that_a_cluster_with_a_dashboard_will_not_take_is_ended_before_it_starts(
    monkeypatch, init
):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(starting, "EARLY", SimpleNamespace(end=lambda: init.calls.append("template ended")))
    with starting_ray(say=lambda text: None, options={"include_dashboard": True}):
        ray.init()
        assert os.environ["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:8265"  # not of another cluster here
    assert "RAY_API_SERVER_ADDRESS" not in os.environ
    assert init.calls == ["template ended", *[{"include_dashboard": True}] * 2, "heeds"]


def test_a_template_outlives_a_search_for_a_cluster_that_is_not_there(monkeypatch, init):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ended = []
    monkeypatch.setattr(starting, "EARLY", SimpleNamespace(end=lambda: ended.append("early")))

    def refuses(address, *_):
        raise ConnectionError("there is none")

    monkeypatch.setattr(starting, "_check_answer", refuses)
    with starting_ray(say=lambda text: None), pytest.raises(ConnectionError):
        ray.init("auto")
    assert ended == []


@pytest.mark.parametrize("status", [15, 1])  # of the handlers of `ray.init` and of the node that it starts
@pytest.mark.parametrize("address", ["local", "127.0.0.1:1"])
def test_an_exit_by_rays_own_handlers_is_the_request_to_end(init, address, status):
    init.errors = [SystemExit(status)]
    with starting_ray(say=lambda text: None), pytest.raises(Terminated) as ended:
        ray.init(address=address)
    assert (ended.value.number, ended.value.code) == (signal.SIGTERM, 143)


def test_an_earlier_request_stays_what_it_is(init):
    init.errors = [asked := Terminated(signal.SIGHUP)]
    with starting_ray(say=lambda text: None), pytest.raises(Terminated) as ended:
        ray.init(address="local")
    assert ended.value is asked


def test_the_token_of_a_cluster_with_a_dashboard_can_be_had_from_ray(monkeypatch, init):
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with starting_ray(say=lambda text: None, options={"include_dashboard": True}):
        ray.init()
    assert init.asked == [{"shared": True}]


@pytest.mark.parametrize(
    ("given", "variable", "for_others"),
    [({}, None, False), ({"_node_ip_address": "10.0.0.7"}, None, True), ({}, "1", True)],
)
def test_a_cluster_of_its_own_listens_where_only_this_machine_reaches_it(
    monkeypatch, init, given, variable, for_others
):
    """Unless its user has said otherwise; tests of whole runs look at the sockets."""
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.delenv(starting.SWITCH_VARIABLE, raising=False)
    if variable:
        monkeypatch.setenv(starting.SWITCH_VARIABLE, variable)
    seen = []
    monkeypatch.setattr(ray, "init", lambda **_: seen.append(ray_constants.ENABLE_RAY_CLUSTER))
    with starting_ray(say=lambda text: None):
        ray.init(**given)
    assert seen == [for_others]
    assert ray_constants.ENABLE_RAY_CLUSTER


def test_a_ray_without_the_switch_starts_as_ever(monkeypatch, init):
    monkeypatch.setattr(starting, "SWITCH_NAME", "NO_SUCH_SWITCH")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    with starting_ray(say=lambda text: None):
        ray.init()
    assert init.errors == []


@pytest.mark.parametrize("given", [{"address": "auto"}, {}, {"address": "127.0.0.1:6379"}])
@pytest.mark.parametrize("where", ["variable", "file of ray start"])
def test_a_cluster_that_is_there_is_joined_or_not(monkeypatch, init, tmp_path, where, given):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if where == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    else:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    options = {"include_dashboard": False}
    with starting_ray(say=lambda text: None, options=options), pytest.raises(Exception, match="timed out"):
        ray.init(**given, num_cpus=16, num_gpus=0, resources={"sim": 1}, namespace="own")
    assert init.calls == [{**given, "namespace": "own"}]
    assert init.asked == []


@pytest.fixture
def said(monkeypatch):
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger(starting.TOKEN_MODULE)
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "disabled", False)
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_the_notice_of_the_default_is_left_out_and_the_warning_of_its_absence_is_not(said):
    starting.hush()
    tokens._warn_token_auth_enabled()
    assert said == []
    tokens._warn_token_auth_disabled()
    assert said[0].startswith("Token authentication is disabled")


def test_without_it_ray_says_so(said):
    tokens._warn_token_auth_enabled()
    assert said[0].startswith(starting.TOKENS_ENABLED_MESSAGE)


@pytest.mark.parametrize("said", [False, True])
def test_what_ray_says_of_the_dead_is_left_out_unless_it_is_asked_for(monkeypatch, capsys, said):
    """The run itself says which process it was; Ray would add a page of its log."""
    from ray._private import worker

    def rays_own(data, ignore_prefix):
        print(*data["lines"])  # noqa: T201

    monkeypatch.setattr(worker, "print_to_stdstream", rays_own)
    starting.hush(show_deaths=said)
    words = {"lines": ["A worker died or was killed"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(words, ignore_prefix=False)
    assert ("A worker died" in capsys.readouterr().out) == said


def test_ray_says_it_by_the_function_that_is_replaced():
    import inspect

    from ray._private import worker

    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages)


@pytest.mark.parametrize(("mode", "raised"), [(None, RayNotJoined), ("token", ConnectionError)])
def test_a_cluster_that_is_there_and_lets_nobody_in_is_told_from_one_that_knows_the_token(
    monkeypatch, init, mode, raised
):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    init.errors = [ConnectionError("Failed to connect to Ray cluster")]
    with (
        starting_ray(say=lambda text: None),
        pytest.raises(ConnectionError, match="Failed to connect") as caught,
    ):
        ray.init()
    assert type(caught.value) is raised
    assert len(init.calls) == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_a_config_names_and_that_does_not_answer_is_not_waited_for(monkeypatch, init, address):
    monkeypatch.setattr(starting, "connection_error", environment.connection_error)
    with starting_ray(say=lambda text: None), pytest.raises(RayNotThere) as caught:
        ray.init(address=address)
    assert init.calls == []
    said = str(ray_ending_of(caught.value))
    assert said.startswith(f"Ray does not answer at {address} (Connection refused); start that cluster, or")


@pytest.mark.parametrize(("of_ray_start", "raised"), [(None, ConnectionError), ("127.0.0.1:1", RayNotThere)])
def test_another_run_that_does_not_answer_is_no_cluster_and_one_of_ray_start_is(
    monkeypatch, init, of_ray_start, raised
):
    """RLinf asks for any cluster, and starts its own after a ConnectionError."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(starting, "connection_error", environment.connection_error)
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: {"127.0.0.1:1"})
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: of_ray_start)
    with starting_ray(say=lambda text: None), pytest.raises(raised, match="does not answer at") as caught:
        ray.init(address="auto")
    assert type(caught.value) is raised
    assert init.calls == []
