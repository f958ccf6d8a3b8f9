"""What trainer mode vla_async does not serve is named, all at once, with what to do."""

import pytest
import torch
from omegaconf import OmegaConf, open_dict

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.judge.reasons import RefusedError
from rlinf_async.hosts.kit import building
from rlinf_async.hosts.verl import explain, trials, units
from rlinf_async.hosts.verl.config import read
from rlinf_async.hosts.verl.reasons import TABLE
from rlinf_async.hosts.verl.view import VerlView
from tests.hosts.verl.configs import composed

ACTOR = "actor_rollout_ref.actor"
NOT_SERVED = {"false": True, "true": False, "null": "something", "0": 3, "1": 2, "fsdp2": "fsdp"}
"""For each value that is served, one that is not."""


@pytest.fixture(scope="module")
def config():
    return composed()


@pytest.mark.parametrize("refusal", TABLE.refused, ids=lambda refusal: refusal.name)
def test_every_setting_of_the_table_is_refused_by_name_with_a_mend_that_works(config, refusal):
    value = (
        "bypass_mode"
        if refusal.name.endswith("loss_mode")
        else NOT_SERVED[refusal.override.partition("=")[2]]
    )
    asked = config.copy()
    with open_dict(asked):
        OmegaConf.update(asked, refusal.name, value, force_add=True)
    with pytest.raises(RefusedError) as caught:
        read(asked)
    (reason,) = caught.value.reasons
    assert f"{refusal.name}={value!r}" in reason.text
    key, _, mended = reason.override.partition("=")
    OmegaConf.update(asked, key, OmegaConf.from_dotlist([f"x={mended}"]).x)
    read(asked)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.adv_estimator=remax"], "adv_estimator=remax: it needs a second"),
        (["vla.model.add_value_head=false"], "vla.model.add_value_head=false: the estimator needs values"),
        (["algorithm.adv_estimator=grpo", "env.train.auto_reset=true"], "compares whole episodes"),
        (["algorithm.adv_estimator=gpg", "async.advanced.normalization=running"], "looks at the whole batch"),
        (["async.mode=train", "async.deterministic=true", "trainer.test_freq=2"], "async.deterministic"),
        (["async.train.max_stalenes=2"], "did you mean async.train.max_staleness"),
        (["trainer.resume_mode=latest"], "resume_mode='latest' must be one of auto"),
        (["vla.ratio_level=step"], "vla.ratio_level='step'"),
        (["+vla.model.precision=fp8"], "vla.model.precision='fp8' must be one of fp32, bf16, fp16"),
        ([f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp16"], "param_dtype=bf16"),
        (["data.train_batch_size=30"], "nearest: data.train_batch_size=32"),
        ([f"{ACTOR}.ppo_mini_batch_size=7"], "nearest: 8"),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=150"], "nearest: 160"),
        (["async.streamer.micro_batch_size=7"], "async.streamer.micro_batch_size=7 x 1 learner ranks do not"),
        ([f"{ACTOR}.ppo_micro_batch_size_per_gpu=null"], "ppo_micro_batch_size_per_gpu is missing"),
        (["trainer.total_training_steps=null"], "trainer.total_training_steps is missing"),
        (["async.rollout.shards=3"], "nearest number of shards"),
        (["async.rollout.max_batch_size=4"], "use at least 16"),
        (["trainer.test_freq=2", "env.eval.total_num_envs=7", "async.rollout.shards=2"], "nearest: 8"),
        (["vla.model.num_action_chunks=3"], "nearest: 21"),
        (["env.train.env_class=null"], "env.train.env_class is missing"),
        (["trainer.val_before_train=true", "env.eval=null"], "with no env.eval"),
    ],
)
def test_what_does_not_go_together_is_said_with_what_does(overrides, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what it says is looked at below
        read(composed(*overrides))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "override"),
    [
        ("geo_mean", "async.streamer.enabled=false"),
        ("sapo", f"{ACTOR}.loss_agg_mode=seq-mean-token-mean"),
    ],
)
def test_a_loss_whose_micro_batches_are_no_sum_is_refused_where_level_3_streams(loss, override):
    asked = (f"{ACTOR}.policy_loss.loss_mode={loss}", f"{ACTOR}.ppo_epochs=1")
    with pytest.raises(RefusedError, match=f"loss_mode={loss}") as caught:
        read(composed(*asked))
    (reason,) = caught.value.reasons
    assert reason.override == override
    assert override in reason.text
    read(composed(*asked, override))
    # With several epochs the learner waits for the batch, which veRL's own loop trains.
    read(composed(asked[0]))


def test_everything_that_stands_in_the_way_is_said_at_once():
    with pytest.raises(RefusedError) as caught:
        read(
            composed(f"{ACTOR}.strategy=fsdp", "algorithm.use_kl_in_reward=true", "data.train_batch_size=30")
        )
    assert len(caught.value.reasons) == 3
    assert f"as overrides: {ACTOR}.strategy=fsdp2 algorithm.use_kl_in_reward=false" in str(caught.value)


def test_verls_own_default_config_is_told_what_it_lacks():
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        stock = compose("ppo_trainer", overrides=["trainer.v1.trainer_mode=vla_async"])
    with pytest.raises(RefusedError) as caught:
        read(stock)
    said = " ".join(reason.text for reason in caught.value.reasons)
    for key in ("strategy", "use_remove_padding", "critic.enable", "env.train"):
        assert key in said


OPTIM = f"{ACTOR}.optim"
ARGUMENTS = f"{OPTIM}.override_optimizer_config"
WRAP = f"{ACTOR}.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"


@pytest.mark.parametrize(
    ("overrides", "words", "remedy"),
    [
        ([f"{OPTIM}.betas=[0.9,1.0]"], "optim.betas=[0.9, 1.0] must be a list of two", None),
        ([f"{OPTIM}.optimizer=SGD"], "unexpected keyword argument 'eps'; remove", f"~{ARGUMENTS}.eps"),
        ([f"+{ARGUMENTS}.epsilon=1e-5"], "argument 'epsilon'; remove", f"~{ARGUMENTS}.epsilon"),
        (
            [f"+{ARGUMENTS}.foreach=true", f"+{ARGUMENTS}.fused=true"],
            "optimizer=AdamW of torch.optim fails with",
            None,
        ),
        ([f"{OPTIM}.optimizer=Muon"], "optimizer=Muon of torch.optim fails with", None),
        ([f"{OPTIM}.optimizer=Adm"], "did you mean 'Adam'?", None),
        ([f"{OPTIM}.optimizer_impl=torch.optm"], "torch.optm cannot be imported", None),
        ([f"{ARGUMENTS}.eps=-1"], "eps=-1 must be a finite number of at least 0", f"{ARGUMENTS}.eps=0"),
        ([f"{WRAP}=[Liner]"], "GaussianMLP that FSDP2 wraps; did you mean 'Linear'?", None),
        ([f"{WRAP}=null"], "it consists of Linear, ", None),
        ([f"{WRAP}=[]"], "must be the name of a layer, or a list of one or more", None),
    ],
)
def test_what_a_learner_rank_would_fail_to_build_is_known_before_ray(overrides, words, remedy):
    with pytest.raises(RefusedError) as caught:
        read(composed(*overrides))
    assert words in str(caught.value)
    if remedy is not None:
        assert [reason.override for reason in caught.value.reasons] == [remedy]
        read(composed(*overrides, remedy))


def test_without_verl_no_package_of_an_optimizer_is_imported(monkeypatch):
    monkeypatch.setattr(trials, "is_here", lambda package: False)
    monkeypatch.setattr(trials, "import_module", lambda package: pytest.fail(f"{package} is imported"))
    view = VerlView.of(plain(composed(f"{OPTIM}.optimizer_impl=torch.optm")))
    assert list(trials.optimizer_reasons(view)) == []


def test_reasons_and_remarks_about_its_layers_build_the_policy_once(monkeypatch, request):
    builds = []
    units._built.cache_clear()
    request.addfinalizer(units._built.cache_clear)  # tests of real policies follow
    monkeypatch.setattr(
        building, "built", lambda *arguments: builds.append(arguments) or torch.nn.Linear(2, 2)
    )
    view = VerlView.of(plain(composed(f"{WRAP}=[Linear,Nothing]")))
    assert list(trials.unit_reasons(view)) == []
    assert len(list(explain.unit_remarks(view))) == 1
    assert len(builds) == 1


class OfGPUs:
    """An optimizer that makes no step on a CPU."""

    def __init__(self, parameters, *, lr, weight_decay, eps):
        pass

    def step(self):
        raise RuntimeError("no GPU")


class BuiltOnGPUs:
    def __init__(self, parameters, **arguments):
        raise RuntimeError("no GPU")


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{OPTIM}.optimizer=SGD", f"~{ARGUMENTS}.eps"],
        [f"{OPTIM}.optimizer=Adam", f"+{ARGUMENTS}.amsgrad=true"],
        [f"{OPTIM}.betas=[0,0.5]"],
        [f"+{ARGUMENTS}.capturable=true"],
        [f"{OPTIM}.optimizer_impl={__name__}", f"{OPTIM}.optimizer=OfGPUs"],
        [f"{OPTIM}.optimizer_impl={__name__}", f"{OPTIM}.optimizer=BuiltOnGPUs"],
        [f"{WRAP}=[Sequential,Nothing]"],
    ],
)
def test_what_a_learner_rank_would_build_is_accepted(overrides):
    read(composed(*overrides))
