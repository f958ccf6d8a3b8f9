"""What Ray says at every start."""

import logging

import pytest
from ray._private.authentication import authentication_token_setup as tokens

from rlinf_async.ray_runtime import chatter


@pytest.fixture
def said(monkeypatch):
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger = logging.getLogger(chatter.TOKEN_MODULE)
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(logger, "disabled", False)
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_the_notice_of_the_default_is_left_out_and_the_warning_of_its_absence_is_not(said):
    chatter.hush()
    tokens._warn_token_auth_enabled()
    assert said == []
    tokens._warn_token_auth_disabled()
    assert said[0].startswith("Token authentication is disabled")


def test_without_it_ray_says_so(said):
    tokens._warn_token_auth_enabled()
    assert said[0].startswith(chatter.TOKENS_ENABLED_MESSAGE)


@pytest.mark.parametrize("said", [False, True])
def test_what_ray_says_of_the_dead_is_left_out_unless_it_is_asked_for(monkeypatch, capsys, said):
    """The run itself says which process it was; Ray would add a page of its log."""
    from ray._private import worker

    def rays_own(data, ignore_prefix):
        print(*data["lines"])  # noqa: T201

    monkeypatch.setattr(worker, "print_to_stdstream", rays_own)
    chatter.hush(said=said)
    words = {"lines": ["A worker died or was killed"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(words, ignore_prefix=False)
    assert ("A worker died" in capsys.readouterr().out) == said


def test_ray_says_it_by_the_function_that_is_replaced():
    import inspect

    from ray._private import worker

    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages)
