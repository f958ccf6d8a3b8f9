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
    logger = logging.getLogger(chatter.TOKENS)
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
    assert said[0].startswith(chatter.NORMAL)
