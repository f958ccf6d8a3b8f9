"""Gradients of levels 1 and 3 at lag 0 against RLinf's own actor, on real models: FSDP2 over two ranks."""

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from tests.checkouts import EMBODIED, configs
from tests.hosts.rlinf.learners import run_cases
from tests.vla.families import FAMILIES, LORA
from tests.vla.learning import Case, run

pytestmark = pytest.mark.nightly

MODES = {
    "train": {},
    "streamer": {},
    "blind": {"mode": "train", "examined": False},
}
"""`blind` is level 1 that takes for granted that values scored again are those that were stored."""
ROUNDING = 1e-4
"""Largest norm of a difference, relative to what RLinf's actor has."""


@pytest.fixture(scope="module", params=(*FAMILIES, *LORA), ids=str)
def family(request):
    if request.param.missing:
        pytest.skip(request.param.missing)
    return request.param


@pytest.fixture(scope="module")
def trained(family, tmp_path_factory):
    """Every mode, by its name."""
    place = tmp_path_factory.mktemp("learning")
    family.write(place)
    given = {"family": family, "place": place, "configs": configs("rlinf-v0.3") / EMBODIED}
    wanted = {name: sizes for name, sizes in MODES.items() if name != "blind" or family.name == "pi0"}
    cases = [Case(name=name, **{"mode": name, **given, **sizes}) for name, sizes in wanted.items()]
    return run_cases(2, cases, tmp_path_factory.mktemp("ranks"), run=run)


def deviation(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("mode", ["train", "streamer"])
def test_a_real_model_is_trained_as_by_rlinfs_own_actor(trained, mode):
    ours, theirs = trained[mode]["ours"], trained[mode]["stock"]
    assert len(ours.gradients) == len(theirs.gradients) == 1
    assert all(gradient.norm() > 0.1 for gradient in theirs.gradients)
    for found, expected in zip(ours.gradients, theirs.gradients, strict=True):
        assert deviation(found, expected) < ROUNDING
    assert deviation(ours.weights - ours.start, theirs.weights - theirs.start) < ROUNDING


def test_inference_scores_as_the_learner_although_it_began_with_other_weights(trained):
    # Its frozen weights too: what no checkpoint gives is different in each process until it is sent.
    ours = trained["train"]["ours"]
    assert ours.metrics[0]["train/premise/logprobs"] < ROUNDING
    for report in ours.metrics:
        assert report["train/mismatch/lag_0/kl"] == pytest.approx(0, abs=ROUNDING)
        assert report["train/actor/behaviour_weight"] == pytest.approx(1, abs=ROUNDING)


def test_values_of_one_denoise_step_would_give_pi0_other_gradients(family, trained):
    if family.name != "pi0":
        pytest.skip("its critic does not depend on the denoise step")
    blind = trained["blind"]
    assert deviation(blind["ours"].gradients[0], blind["stock"].gradients[0]) > 100 * ROUNDING
