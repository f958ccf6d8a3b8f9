"""The bench's log of a real policy: which samples it calls new."""

import pytest
import torch

from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.spans import SpanLog

pytest.importorskip("rlinf", reason="RLinf is not installed")
from rlinf_async.lab.emulated.logged_policy import LoggedPolicy


class Constant(torch.nn.Module):
    """Draws the same action for every observation, as a policy that has collapsed."""

    def predict_action_batch(self, *, env_obs):
        action = torch.zeros(len(env_obs["states"]), 3)
        return action.numpy(), {"forward_inputs": {"action": action}}

    def default_forward(self, *, forward_inputs):
        return {"logprobs": torch.zeros(len(forward_inputs["action"]))}


def decisions(policy, size):
    return policy.predict_action_batch({"states": torch.zeros(size, 8)})[1]["forward_inputs"]


def trained(folder):
    return [record["samples"] for record in read_spans(folder) if record["kind"] == "train"]


def test_equal_actions_are_different_samples_and_a_sample_that_is_trained_again_is_the_same(tmp_path):
    first, second = (LoggedPolicy(Constant(), SpanLog(str(tmp_path))) for _ in range(2))
    acted = [decisions(first, 3), decisions(first, 2), decisions(second, 3)]
    for forward_inputs in (*acted, acted[0]):
        first.default_forward(forward_inputs)
    *once, again = trained(tmp_path)
    assert [len(samples) for samples in once] == [3, 2, 3]
    assert len({sample for samples in once for sample in samples}) == 8
    assert again == once[0]


def test_the_log_draws_nothing_of_the_runs_random_numbers(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    decisions(LoggedPolicy(Constant(), SpanLog(str(tmp_path))), 3)
    assert torch.equal(torch.rand(4), expected)
