"""Values and keys that only a process of the run would have refused, or that nothing would have read."""

import pytest

from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.judge.reasons import RefusedError
from rlinf_async.hosts.verl.config import runnable_settings
from rlinf_async.hosts.verl.explain import explain
from rlinf_async.hosts.verl.settings import section
from rlinf_async.hosts.verl.view import UNITS_KEY, VerlView
from tests.hosts.verl.configs import composed

ACTOR = "actor_rollout_ref.actor"
FSDP = f"{ACTOR}.fsdp_config"
FOUR_RANKS = ("trainer.n_gpus_per_node=4", f"{ACTOR}.ppo_micro_batch_size_per_gpu=40")


def refusal(*overrides):
    with pytest.raises(RefusedError) as caught:
        runnable_settings(plain(composed(*overrides)))
    return caught.value


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([f"{FSDP}.fsdp_size=0"], "fsdp_size=0 does not divide the learner ranks, of which there are 1"),
        ([*FOUR_RANKS, f"{FSDP}.fsdp_size=3"], "fsdp_size=3 does not divide the learner ranks"),
        (["vla.ckpt_path=nowhere.pt"], "vla.ckpt_path=nowhere.pt does not exist"),
        (["vla.ckpt_path=s3://bucket/x.pt"], "vla.ckpt_path=s3://bucket/x.pt does not exist"),
        (["+vla.model.model_path=7"], "vla.model.model_path=7 must be the path or the name of a model"),
        (["+vla.model.model_path=/dev/null/x"], "vla.model.model_path=/dev/null/x does not exist"),
        (["vla.run_dir='~/runs'"], "vla.run_dir=~/runs is no path of this machine"),
        (["trainer.save_freq=2", "trainer.default_local_dir=s3://b"], "is no path of this machine"),
        (["++trainer.checkpoint_callback_class=os:x"], "must be package.module.Class"),
        (["++trainer.checkpoint_callback_class=nowhere.X"], "No module named 'nowhere'"),
        (["++trainer.checkpoint_callback_class=json.JSONDecoder"], "no attribute 'on_save'"),
        (["+ray_kwargs.ray_init.num_cpu=3"], "num_cpu is no argument of ray.init; remove it; did you mean"),
        (["data.train_batch_size=7", "actor_rollout_ref.rollout.n=3"], "nearest: data.train_batch_size=32"),
        (["env.workers=3"], "nearest total that does: 33 (env.train.total_num_envs, env.workers)"),
        (
            ["trainer.n_gpus_per_node=3"],
            "(env.train.total_num_envs, trainer.nnodes x trainer.n_gpus_per_node)",
        ),
        ([f"+{FSDP}.mixed_precison.param_dtype=bf16"], f"did you mean {FSDP}.mixed_precision.param_dtype?"),
        ([f"+{FSDP}.mixed_precision.param_dtyp=bf16"], f"did you mean {FSDP}.mixed_precision.param_dtype?"),
        ([f"+{FSDP}.reshard_after_foward=false"], f"did you mean {FSDP}.reshard_after_forward?"),
        ([f"+{FSDP}.zzz=true"], "veRL refuses this config"),
        (["+critic.optim.lrr=3"], "did you mean critic.optim.lr?"),
        (["+critic.optimm.lr=3"], "did you mean critic.optim.lr?"),
        (["+data.train_batch_siz=3"], "did you mean data.train_batch_size?"),
        ([f"+{ACTOR}.optim.learning_rate=3"], "optim.learning_rate=3; remove it"),
    ],
)
def test_it_is_refused_before_ray_with_its_key(overrides, words):
    assert words in str(refusal(*overrides))


def test_a_block_in_the_place_of_a_value_has_one_reason():
    assert str(refusal("vla.ckpt_path={a: 1}")).startswith("vla.ckpt_path={'a': 1} must be a file of weights")


@pytest.mark.parametrize(
    ("overrides", "remark"),
    [
        (["trainer.default_hdfs_dir=hdfs://a/b"], "veRL's FSDP2 engine copies no checkpoint"),
        (["actor_rollout_ref.rollout.nnodes=2"], "rollout.nnodes=2 has no effect: vla.inference.ranks=1"),
        (["+vla.model.hidden=64"], "vla.model.hidden=64 is not read when gaussian_mlp is built"),
        (["+actor_rollout_ref.rollout.temprature=3"], "has no effect here"),
        (["+critic.lr=3"], "critic.lr=3 has no effect here"),
        ([f"{UNITS_KEY}=[Linear,Nope]"], f"{UNITS_KEY}: GaussianMLP has no layer Nope"),
    ],
)
def test_it_is_said_and_the_run_goes_on(overrides, remark):
    before, after = (explain(composed(*each))["remarks"] for each in ((), overrides))
    (said,) = [each for each in after if each not in before]
    assert remark in said


@pytest.mark.parametrize(
    "overrides",
    [
        [*FOUR_RANKS, f"{FSDP}.fsdp_size=2"],
        [f"{FSDP}.fsdp_size=8"],
        ["+ray_kwargs.ray_init.num_gpus=1"],
        ["+ray_kwargs.ray_init._temp_dir=/tmp/x"],
        ["++trainer.checkpoint_callback_class=verl.trainer.ppo.checkpoint_callback.CheckpointCallback"],
        [f"{FSDP}.full_determinism=true"],
    ],
)
def test_what_would_run_is_accepted_without_a_remark(overrides):
    before, after = (explain(composed(*each))["remarks"] for each in ((), overrides))
    assert after == before


def test_a_seed_of_null_stands_for_that_of_the_run():
    view = VerlView.of(plain(composed("env.train.seed=null", "env.train.auto_reset=null")))
    assert section(view, "train")["seed"] == view.seed
    assert section(view, "train")["auto_reset"] is False


def test_settings_of_a_level_that_is_off_are_noted():
    off = "async.rollout.shards=4 has no effect: async.rollout.enabled is false"
    for mode, count in {"lean": 1, "full": 0}.items():
        assert (
            explain(composed(f"async.mode={mode}", "async.rollout.shards=4"))["remarks"].count(off) == count
        )


@pytest.mark.parametrize("value", ["null", "[gaussian_mlp]"])
def test_a_name_that_is_no_text_is_one_reason(value):
    assert len(refusal(f"vla.model.model_type={value}").reasons) == 1


@pytest.mark.parametrize("value", ["null", "[metaworld_task]"])
def test_a_class_of_environments_that_is_no_text_is_one_reason_for_each_section(value):
    reasons = refusal(f"env.train.env_class={value}").reasons
    assert len(reasons) == len({reason.text.partition("=")[0].partition(" ")[0] for reason in reasons})
