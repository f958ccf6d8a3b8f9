"""RLinf's losses and advantages by name, and those of them that are supported."""

from __future__ import annotations

ON_POLICY_LOSSES = {
    "actor_critic": "actor_critic",
    "actor": "actor",
    "decoupled_actor_critic": "actor_critic",
}
"""{supported `algorithm.loss_type`: the on-policy loss that it reduces to}."""
CRITIC_LOSS = "actor_critic"
"""The on-policy loss that also trains a critic."""
ASYNC_PPO = "decoupled_actor_critic"
"""The `algorithm.loss_type` of configs for RLinf's own asynchronous PPO, `train_async.py`."""
GAE_TYPE, GRPO_TYPE = ADVANTAGE_TYPES = "gae", "grpo"
"""RLinf's values of `algorithm.adv_type` for PPO and for GRPO."""
NFT_LOSS = "embodied_nft"
"""RLinf's loss on the velocities of flow matching, which needs no likelihood; see `hosts.rlinf.nft`."""
LOSSES_WITHOUT_RATIO = {NFT_LOSS: (GRPO_TYPE, "raw")}
"""{supported `algorithm.loss_type` without probability ratios: values of `algorithm.adv_type` for it}."""
DISTILLATION = "opd"
"""The `algorithm.loss_type` and `algorithm.adv_type` of on-policy distillation, in RLinf's main branch."""
SCRIPT, ASYNC_SCRIPT = "train_embodied_agent.py (EmbodiedRunner)", "train_async.py (AsyncEmbodiedRunner)"
"""RLinf's scripts in `examples/embodiment`, and the runners that they start."""
OTHER_ALGORITHMS = {
    "embodied_sac": ("SAC", SCRIPT, ASYNC_SCRIPT),
    "embodied_dagger": ("DAgger", SCRIPT, ASYNC_SCRIPT),
    "offline_iql": ("IQL", "train_offline_rl.py (OfflineRunner)"),
    "rlt_ac": ("RLT", SCRIPT, ASYNC_SCRIPT),
    "rlt_td3": ("RLT", SCRIPT),
}
"""RLinf's losses other than policy gradients on fresh rollouts, with the names of their algorithms and the
scripts of RLinf that train with them (main a3816b59)."""
OTHER_ADVANTAGES = frozenset({"grpo_dynamic", "grpo_video", "raw", "reinpp"})
"""RLinf's values of `algorithm.adv_type` that PPO and GRPO do not have here."""
RATIO_LEVELS = ("token_level", "action_level", "chunk_level")
"""Supported values of `algorithm.logprob_type`: the level at which probability ratios are formed."""
COMPARING_TYPES = (GRPO_TYPE, "grpo_dynamic", "reinpp_baseline")
"""RLinf's values of `algorithm.adv_type` that compare the members of a group."""

LOSS_NAME = "rlinf_async"
"""The name in RLinf's registry of the loss that replaces the config's loss."""


def has_ratio(loss: object) -> bool:
    """Return True if RLinf's `loss_type` compares probabilities of two policies."""
    return str(loss) not in LOSSES_WITHOUT_RATIO


def is_served(loss: object, advantage: object) -> bool:
    """Return True if runs with a level on train with RLinf's `loss_type` and `adv_type`."""
    own = LOSSES_WITHOUT_RATIO.get(str(loss), ())
    return str(advantage) in (ADVANTAGE_TYPES if str(loss) in ON_POLICY_LOSSES else own)
