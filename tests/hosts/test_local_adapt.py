"""A run in one process whose limits change while it goes on."""

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer, point_reach
from rlinf_async.loops import adapting
from rlinf_async.observe.spans import read_spans
from tests.scripted import scripted

pytestmark = pytest.mark.timeout(60)

ONE = {"max_staleness": 1, "max_batch_size": 16, "max_wait_s": 0.0}
TWO = {"max_staleness": 2, "max_batch_size": 4, "max_wait_s": 0.001}


def settings(**block):
    return LocalSettings(
        asynchrony=AsyncConfig.from_mapping(
            {"mode": "full", "train": {"max_staleness": 2}, "rollout": {"shards": 16}, **block}
        ),
        total_envs=16,
        horizon=5,
        batches=8,
        global_batch_size=80,
        micro_batch_size=20,
        hidden=8,
    )


def test_what_is_decided_after_a_step_holds_from_then_on_and_is_said(monkeypatch, tmp_path):
    script = scripted({2: TWO, 6: ONE})
    monkeypatch.setattr(adapting, "Adaptation", script)
    said = []
    result = LocalTrainer(settings(adapt=True), point_reach(), run_dir=tmp_path, say=said.append).run()
    bounds = [report.as_metrics()["async/adapt/max_staleness"] for report in result.reports]
    assert bounds == [1, 1, 2, 2, 2, 2, 1, 1]
    # Requests are of one environment: from the fourth step on every pass was begun under the smaller size.
    assert max(report.batch_size.high for report in result.reports[3:6]) <= 4
    assert max(report.staleness.high for report in result.reports[:2]) <= 1
    assert result.ledger.trained == 8 * 16
    assert not result.ledger.refused
    assert [line.partition(",")[0] for line in said] == [
        "step 2: async.adapt: max_staleness 1 -> 2",
        "step 6: async.adapt: max_staleness 2 -> 1",
    ]
    spans = [span for span in read_spans(tmp_path / "trace") if span["kind"] == "adapt"]
    assert [(span["process"], span["step"], span["after"]) for span in spans] == [
        ("driver", 2, 2),
        ("driver", 6, 1),
    ]
    assert all(0 <= one.learner_waits <= 1 and len(one.held_back) == 16 for one in script.seen)


def test_without_adapt_nobody_is_asked(monkeypatch):
    script = scripted({2: TWO})
    monkeypatch.setattr(adapting, "Adaptation", script)
    result = LocalTrainer(settings(), point_reach()).run()
    assert script.seen == []
    assert not any("async/adapt/changes" in report.as_metrics() for report in result.reports)
