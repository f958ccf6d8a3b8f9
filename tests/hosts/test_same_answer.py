"""`explain` and `train` refuse the same settings in the same words, on every host, before Ray starts."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

import ray
from omegaconf import OmegaConf, open_dict

from tests.hosts.test_any_overrides import LONGEST, host_and_config

NAN = float("nan")
ACTOR = "actor_rollout_ref.actor"
MISTAKES = {
    "rlinf": {
        ("actor.optim.lr", NAN): "must be a finite number of at least 0",
        ("actor.optim.lr", True): "must be a finite number of at least 0",
        ("algorithm.gamma", 1.5): "must be a number from 0 to 1; nearest: 1",
        ("algorithm.logprob_type", "chunk"): "did you mean 'chunk_level'?",
        ("algorithm.bootstrap_type", "alwayss"): "did you mean 'always'?",
        ("runner.max_steps", "ten"): "must be a whole number of at least -1",
        ("runner.logger.logger_backends", ("tensorbord",)): "did you mean 'tensorboard'?",
        ("env.train.env_type", "metaword"): "did you mean 'metaworld'?",
        ("actor.model.model_type", "mlp_polcy"): "did you mean 'mlp_policy'?",
        ("rollout.sampling_params", 3): "rollout.sampling_params=3 must be a block of keys",
        ("algorithm.adv_type", "grpo"): "algorithm.group_size=1: the members of a group are compared",
        ("weight_syncer", None): "use '+weight_syncer=",
    },
    "verl": {
        ("vla.model.model_type", "gausian_mlp"): "did you mean 'gaussian_mlp'?",
        ("vla.model.obs_dim", "many"): "vla.model does not make a gaussian_mlp",
        ("algorithm.adv_estimator", "gea"): "did you mean 'gae'?",
        (
            "algorithm.adv_estimator",
            "grpo",
        ): "algorithm.adv_estimator=grpo with actor_rollout_ref.rollout.n=1: ",
        (f"{ACTOR}.optim.lr", "ten"): "must be a finite number of at least 0",
        (f"{ACTOR}.optim.lr_scheduler_type", "cosin"): "did you mean 'cosine'?",
        (f"{ACTOR}.clip_ratio", "abc"): "must be a number from 0 to 1",
        (f"{ACTOR}.policy_loss.loss_mode", "vanila"): "did you mean 'vanilla'?",
        (f"{ACTOR}.loss_agg_mode", "token_mean"): "did you mean 'token-mean'?",
        ("vla.ckpt_path", "/dev/null/nowhere.pt"): "does not exist",
        (
            "vla.run_dir",
            "/dev/null/runs",
        ): "/dev/null/runs (vla.run_dir) cannot be written: Not a directory",
        ("trainer.logger", ("tensorbord",)): "did you mean 'tensorboard'?",
        ("trainer.total_training_step", 3): "did you mean trainer.total_training_steps?",
        ("trainer.v1.trainer_mode", "vla_asyn"): "did you mean 'vla_async'?",
        ("trainer.v1.trainer_mode", "sync"): "reads no async block; use trainer.v1.trainer_mode=vla_async",
        ("trainer.resume_mode", "resume_path"): "trainer.resume_from_path=None names no checkpoint",
        (f"{ACTOR}.ppo_micro_batch_size", 4): "set it to null: ppo_micro_batch_size_per_gpu takes its place",
        (f"{ACTOR}.optim.optimizer", "AdamX"): "is not an optimizer of torch.optim; did you mean 'Adam'?",
        (
            f"{ACTOR}.optim.optimizer_impl",
            "nowhere.optim",
        ): "cannot be imported: ModuleNotFoundError: No module named",
        (f"{ACTOR}.optim.betas", "many"): "must be a list of two, each a number of at least 0 and below 1",
        (f"{ACTOR}.optim.warmup_style", "cosin"): "did you mean 'cosine'?",
        (f"{ACTOR}.optim.override_optimizer_config", 7): "must be a block of keys",
        (f"{ACTOR}.fsdp_config.fsdp_size", "ten"): "must be a whole number of at least -1",
        (f"{ACTOR}.fsdp_config.forward_prefetch", "maybe"): "must be true or false",
        (f"{ACTOR}.fsdp_config.strategy", "fsdp9"): "veRL refuses this config: strategy fsdp9 not supported",
        (f"{ACTOR}.fsdp_config.brand_new", 3): "unexpected keyword argument 'brand_new'",
        (f"{ACTOR}.optim._target_", "os.system"): "is not served, only veRL's own class; remove it",
        (f"{ACTOR}.optim.betas", ("_target_: os.abort",)): "is not served, only veRL's own class",
    },
    "local": {
        ("settings.batches", 2.5): "must be a whole number of at least 1; nearest: 2",
        ("settings.batches", "ten"): "must be a whole number of at least 1",
        ("settings.seed", -1): "must be a whole number from 0 to 4294967295; nearest: 0",
        ("settings.clip", NAN): "must be a finite number above 0",
        ("settings.global_batch_size", 0): "must be a whole number of at least 1; nearest: 1",
        ("settings.horizon_ends", "yes"): "must be true or false",
        ("runner.max_epochs", 3): "does not read runner.max_epochs=3; use settings.batches",
        ("model.obs_dim", "many"): "model does not make a gaussian_mlp",
        ("run_dir", "/dev/null/runs"): "/dev/null/runs (run_dir) cannot be written: Not a directory",
    },
}
"""A value that is wrong, by host and key, and what is answered."""


composed = cache(host_and_config)


@pytest.mark.parametrize(
    ("host", "key", "value"), [(host, *mistake) for host, every in MISTAKES.items() for mistake in every]
)
def test_a_mistake_is_answered_in_the_same_words_by_explain_and_before_a_run(
    host, key, value, tmp_path, monkeypatch
):
    adapter, base = composed(host)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    cfg = base.copy()
    with open_dict(cfg):
        OmegaConf.update(cfg, key, list(value) if isinstance(value, tuple) else value, force_add=True)
    answers = []
    for ask in (adapter.explain, adapter.prepare):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - what it says is looked at below
            ask(cfg.copy())
        answers.append(str(caught.value))
    assert MISTAKES[host][key, value] in answers[0]
    assert answers[0] == answers[1]
    assert len(answers[0].splitlines()) <= LONGEST
