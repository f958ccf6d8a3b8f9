"""Pieces that inference has scored, on the local host: the anchor is that of the learner's own pass."""

import copy
from concurrent.futures import wait
from threading import Event

import pytest
import torch

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.hosts.kit.samples import LIVE_FIELD, PROXIMAL_FIELD
from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.hosts.local.inference import InferenceRank
from rlinf_async.hosts.local.learner import LocalTraining, score_rollout
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach, point_reach
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.reading.spans import read_spans
from tests.hosts.local_runs import small, small_policy

pytestmark = pytest.mark.timeout(60)

ENVS, HORIZON, EPOCHS, BATCHES = 16, 5, 2, 4


def settings(**changes):
    block = {"mode": "full", "rollout": {"shards": 4}}
    return small(block, **{"update_epoch": 1, "lr": 1e-2} | changes)


class Comparing:
    """Compares every anchor that inference has given with that of the policy which began the batch."""

    def __init__(self, monkeypatch):
        self.given = self.own = self.live = 0
        begin, anchor = LocalTraining.begin, LocalTraining.anchor

        def beginning(training, batch):
            self.first = copy.deepcopy(training.model)
            begin(training, batch)

        def anchoring(training, rollout, scores=None):
            live = rollout[LIVE_FIELD]
            everyone = {name: field for name, field in rollout.items() if name != LIVE_FIELD}
            expected = score_rollout(everyone, self.first)
            anchor(training, rollout, scores)
            fields = {PROXIMAL_FIELD: expected["logprobs"][:-1], "prev_values": expected["values"][:-1]}
            for name, value in fields.items():
                own = rollout[name][: len(live)][live]
                torch.testing.assert_close(own, value[live], rtol=1e-5, atol=1e-6)
            # Values are of last observations, too.
            self.live += int(live.sum() + live[-1].sum())
            width = rollout[PROXIMAL_FIELD].shape[1]
            self.given, self.own = (
                (self.given, self.own + width) if scores is None else (self.given + width, self.own)
            )

        monkeypatch.setattr(LocalTraining, "begin", beginning)
        monkeypatch.setattr(LocalTraining, "anchor", anchoring)


@pytest.fixture
def patient(monkeypatch):
    """The learner waits for the scores of all that has arrived, so that inference scores everything."""
    following = StreamingLearner._next

    def patiently(learner):
        waited = wait([piece.scores for piece in learner._arrived_pieces], timeout=30)
        assert not waited.not_done
        return following(learner)

    monkeypatch.setattr(StreamingLearner, "_next", patiently)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("ends", ["few", "many"])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_inference_scores_live_samples_alone_by_the_weights_with_which_the_batch_begins(
    monkeypatch, ranks, epochs, ends, tmp_path
):
    monkeypatch.setattr(PointReach, "radius", 0.2 if ends == "few" else 0.8)
    compared = Comparing(monkeypatch)
    run = settings(inference_ranks=ranks, update_epoch=epochs)
    result = LocalTrainer(run, point_reach(seed=1), small_policy, run_dir=tmp_path).run()
    assert result.ledger.trained == ENVS * EPOCHS * BATCHES
    assert (compared.own, compared.given) == (0, ENVS * EPOCHS * BATCHES)
    kinds = [span for span in read_spans(tmp_path / "trace") if span["kind"] == "score"]
    assert sum(span["size"] for span in kinds) == compared.live
    assert (compared.live < 0.7 * compared.given * (HORIZON + 1)) == (ends == "many")
    batches = [report.batch_size for report in result.reports]
    assert max(batch.high for batch in batches) <= run.max_batch_size


def test_whoever_scores_a_piece_its_anchor_is_that_of_the_weights_with_which_the_batch_begins(monkeypatch):
    compared = Comparing(monkeypatch)
    result = LocalTrainer(settings(), point_reach(seed=1), small_policy).run()
    assert compared.own + compared.given == ENVS * EPOCHS * BATCHES
    told = [step["train/scored_by_inference"] for step in result.metrics]
    assert sum(told) == pytest.approx(compared.given / (ENVS * EPOCHS))


def test_a_policy_that_fails_to_score_ends_the_run_with_its_error(monkeypatch):
    failed, following = Event(), StreamingLearner._next

    def failing(rank, payloads):
        failed.set()
        raise ZeroDivisionError("no scores")

    def next_after_the_failure(learner):
        assert failed.wait(30)
        return following(learner)

    monkeypatch.setattr(InferenceRank, "_scores", failing)
    monkeypatch.setattr(StreamingLearner, "_next", next_after_the_failure)
    with pytest.raises(PolicyFailure, match="inference rank 0: ZeroDivisionError: no scores"):
        LocalTrainer(settings(), point_reach(seed=1), small_policy).run()
