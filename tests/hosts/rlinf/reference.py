"""Off-policy PPO and GRPO as RLinf's own decoupled loss computes them, a whole optimizer step at a time.

Nothing here knows micro-batches, pieces or anchors in the past: the proximal policy is asked once, before
the first step of a batch, and advantages are estimated anew from what it says.
"""

import torch
from rlinf.algorithms.losses import compute_decoupled_ppo_actor_critic_loss, compute_decoupled_ppo_actor_loss
from rlinf.workers.actor import fsdp_actor_worker as stock

from tests.hosts.rlinf.learners import actor_of, watched


class Reference:
    """Trains RLinf's actor on batches of `synthetic.fields`, in the order of samples that it is given."""

    def __init__(self, cfg, *, normalised_by_the_batch_before):
        self.actor = actor_of(stock.EmbodiedFSDPActor, cfg)
        self.training = watched(self.actor)
        self._cfg, self._before = cfg, None
        self._running = normalised_by_the_batch_before

    def train(self, batch, steps):
        """`steps`: the numbers of the samples of each optimizer step."""
        samples = self._samples(batch)
        own = samples.pop("own", None)
        for number, numbers in enumerate(steps):
            if number == 1 and own is not None:
                samples["advantages"] = own
            chosen = {name: value.flatten(0, 2)[numbers] for name, value in samples.items()}
            self.actor.optimizer.zero_grad()
            self._loss(chosen).backward()
            self.actor.optimizer_step()
        self.actor.lr_scheduler.step()

    def _samples(self, batch):
        """Everything that the loss looks at, [epoch, T, environment, ...]."""
        logprobs, values = self._ask(batch)
        dones = batch["dones"][..., 0]
        mask = (dones.long().cumsum(1) == 0)[:, :-1]
        found = {
            "states": batch["states"][:, :-1],
            "action": batch["action"],
            "behaviour": batch["prev_logprobs"],
            "proximal": logprobs,
            "mask": mask[..., None],
            "length": mask.sum(1, keepdim=True).expand_as(mask)[..., None],
        }
        if self._cfg.algorithm.adv_type == "grpo":
            return found | {"advantages": self._of_groups(batch, mask)[..., None]}
        advantages = self._gae(batch["rewards"][..., 0], values, dones.float())
        returns = advantages + values[:, :-1]
        before, own = self._normalised(advantages, mask)
        return found | {
            "advantages": before[..., None],
            "own": own[..., None],
            "returns": returns[..., None],
            "values": values[:, :-1, :, None],
        }

    @torch.no_grad()
    def _ask(self, batch):
        epochs, observations, envs, _ = batch["states"].shape
        # The action of the last observation is not looked at, but the model wants one.
        action = torch.cat([batch["action"], batch["action"][:, -1:]], dim=1)
        output = self.actor.model(
            forward_inputs={"states": batch["states"].flatten(0, 2), "action": action.flatten(0, 2)},
            compute_logprobs=True,
            compute_entropy=False,
            compute_values=self._cfg.algorithm.adv_type != "grpo",
        )
        shape = (epochs, observations, envs)
        values = output["values"].reshape(shape) if "values" in output else None
        return output["logprobs"].reshape(*shape, -1)[:, :-1], values

    def _gae(self, rewards, values, dones):
        gamma, lam = self._cfg.algorithm.gamma, self._cfg.algorithm.gae_lambda
        advantages, running = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
        for step in reversed(range(rewards.shape[1])):
            alive = 1 - dones[:, step + 1]
            delta = rewards[:, step] + gamma * values[:, step + 1] * alive - values[:, step]
            running = delta + gamma * lam * alive * running
            advantages[:, step] = running
        return advantages

    def _normalised(self, advantages, mask):
        """By the batch before, if that is asked for and there was one, and by the batch itself."""
        found = (advantages[mask].mean(), advantages[mask].std())
        moments = (self._before if self._running and self._before else found), found
        self._before = found
        return tuple((advantages - mean) / (deviation + 1e-5) for mean, deviation in moments)

    def _of_groups(self, batch, mask):
        scores = (batch["rewards"][..., 0] * mask).sum(1).unflatten(1, (-1, self._cfg.algorithm.group_size))
        centred = scores - scores.mean(2, keepdim=True)
        share = (centred / (scores.std(2, keepdim=True) + 1e-6)).flatten(1)
        return share[:, None].expand_as(mask) * mask

    def _loss(self, chosen):
        output = self.actor.model(
            forward_inputs={"states": chosen["states"], "action": chosen["action"]},
            compute_logprobs=True,
            compute_entropy=False,
            compute_values="values" in chosen,
            use_cache=False,
        )
        algorithm = self._cfg.algorithm
        behaviour, proximal = (chosen[name].sum(1, keepdim=True) for name in ("behaviour", "proximal"))
        given = {
            "logprobs": output["logprobs"].sum(1, keepdim=True),
            "old_logprobs": behaviour,
            "proximal_logprobs": proximal,
            "advantages": chosen["advantages"],
            "clip_ratio_low": algorithm.clip_ratio_low,
            "clip_ratio_high": algorithm.clip_ratio_high,
            "loss_mask": chosen["mask"],
            "loss_mask_sum": chosen["length"],
            "max_episode_steps": self._cfg.env.train.max_episode_steps,
        }
        if "values" not in chosen:
            return compute_decoupled_ppo_actor_loss(**given)[0]
        return compute_decoupled_ppo_actor_critic_loss(
            **given,
            values=output["values"],
            prev_values=chosen["values"],
            returns=chosen["returns"],
            value_clip=algorithm.value_clip,
            huber_delta=algorithm.huber_delta,
        )[0]
