"""A patch whose fault only a model's own packages show, on RLinf's class with and without it."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from tests.test_patches import patched, stock  # noqa: F401  (fixtures)
from tests.vla import sources

ROOT = Path(__file__).parents[2]

TOP_K = """
import sys
from pathlib import Path
import torch
from rlinf.models import get_model
from tests.vla import tiny_openvla_oft
from tests.vla.cases import config
from tests.vla.classes import inference, observations, off_by, rescored, rollout

place, side = Path(sys.argv[1]), sys.argv[2]
tiny_openvla_oft.write_checkpoint(place)
cfg = config(tiny_openvla_oft.openvla_oft_block(place), logprob_type="token_level")
cfg.rollout.sampling_params.top_k = 50
torch.manual_seed(0)
model = get_model(cfg.actor.model)
fields, last = rollout(inference(model, cfg), [observations(4), observations(4, seed=2)])
try:
    again = rescored(model, cfg, fields, last, micro_batch_size=4, values=False)
except FloatingPointError:
    sys.exit(0 if side == "stock" else 1)
stored, scored = fields["prev_logprobs"], again["proximal_logprobs"]
sys.exit(0 if side == "patched" and off_by(scored, stored.reshape(scored.shape)) <= 1e-6 else 1)
"""


@pytest.mark.parametrize("side", ["stock", "patched"])
def test_tokens_of_the_top_k_are_scored_as_they_were_sampled_once_patched(side, request, tmp_path):
    if find_spec("timm") is None:
        pytest.skip("timm is not installed: make test-vla")
    if sources.source("openvla-oft") is None:
        pytest.skip(sources.MISSING.format("openvla-oft"))
    folders = [str(request.getfixturevalue(side)), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", TOP_K, str(tmp_path), side],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders), "ROBOT_PLATFORM": "LIBERO"},
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
