"""A rollout worker for another project's engine, in the shape of RLinf's for PhyAI (pull request 1587).

Written from its interface: no `hf_model`; weights from a bucket syncer alone, between `begin_weight_update`
and `finish_weight_update`, through a module around the engine; memory for the largest batch of RLinf's own
loop; the mode `eval` unless told otherwise, which gives no log-probabilities; a `get_bootstrap_values` and a
`set_global_step` of its own.
"""

from typing import Any

import torch
from rlinf.hybrid_engines.weight_syncer.bucket_syncer import BucketWeightSyncer
from rlinf.workers.rollout.hf import huggingface_worker
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker


class Engine:
    """A policy in memory of a fixed size: an answer is overwritten by the next one."""

    def __init__(self, policy: torch.nn.Module, room: int) -> None:
        self.policy, self.room, self.version = policy.eval(), room, 0
        self.batches: list[int] = []
        """Environments in each pass."""
        self._memory: dict[str, torch.Tensor] = {}
        self._coming: dict[str, torch.Tensor] | None = None

    def begin_weight_update(self) -> None:
        assert self._coming is None, "an update is under way"
        self._coming = {}

    def update_weights(self, state_dict: dict[str, torch.Tensor]) -> None:
        assert self._coming is not None, "no update is under way"
        self._coming |= state_dict

    def finish_weight_update(self, version: int) -> list[str]:
        assert self._coming
        self.policy.load_state_dict(self._coming, strict=False)
        self.version, loaded, self._coming = version, list(self._coming), None
        return loaded

    def abort_weight_update(self) -> None:
        self._coming = None

    def step(self, observations: dict[str, Any], mode: str) -> tuple[torch.Tensor, dict[str, Any]]:
        size = len(observations["states"])
        assert size <= self.room, f"a batch of {size} in memory for {self.room}"
        self.batches.append(size)
        with torch.no_grad():
            actions, result = self.policy.predict_action_batch(env_obs=observations, mode=mode)
        fields = {"actions": actions, **{name: result[name] for name in ("prev_logprobs", "prev_values")}}
        kept = {name: self._keep(name, torch.as_tensor(value)) for name, value in fields.items()}
        inputs = {name: self._keep(f"in.{name}", value) for name, value in result["forward_inputs"].items()}
        return kept.pop("actions"), {**kept, "forward_inputs": inputs}

    def _keep(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if name not in self._memory:
            self._memory[name] = value.new_empty(self.room, *value.shape[1:])
        self._memory[name][: len(value)] = value
        return self._memory[name][: len(value)]


class WeightTarget(torch.nn.Module):
    """What the syncer takes for a model."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def load_state_dict(self, state_dict, strict=True, assign=False):  # type: ignore[no-untyped-def]
        del strict, assign
        self.engine.update_weights(dict(state_dict))


class OwnEngineWorker(MultiStepRolloutWorker):
    """RLinf's rollout worker around `Engine`."""

    _engine: Engine | None = None
    steps: tuple[int, ...] = ()

    def init_worker(self) -> None:
        assert self._engine is None, "the engine is there already"
        room = max(self.per_node_train_batch_size, self.per_node_eval_batch_size, 1)
        self._engine = Engine(huggingface_worker.get_model(self.cfg.actor.model), room)
        self._target = WeightTarget(self._engine)

    def predict(self, env_obs, mode="eval"):  # type: ignore[no-untyped-def]
        actions, result = self._engine.step(env_obs, mode)
        if mode == "eval":
            result |= {"prev_logprobs": None, "prev_values": None}
        return actions, {**result, "expert_label_flag": False}

    def get_bootstrap_values(self, final_obs):  # type: ignore[no-untyped-def]
        if final_obs is None:
            return None
        values = self.predict(final_obs, mode="train")[1]["prev_values"]
        return None if values is None else values[:, :1].cpu()

    async def sync_model_from_actor(self) -> None:
        if not isinstance(self.weight_syncer, BucketWeightSyncer):
            raise NotImplementedError(f"weights come from a bucket syncer, not {type(self.weight_syncer)}")

        async def received():  # type: ignore[no-untyped-def]
            ends = [
                (self.actor_group_name, self.actor_weight_src_rank),
                (self._group_name, self._weight_sync_rollout_ranks),
            ]
            source, options = ends[0], self._sync_weight_comm_options
            handle = self.broadcast(None, groups=ends, src=source, async_op=True, options=options)
            return await handle.async_wait()

        if not self.weight_syncer.receiver_initialized():
            await self.weight_syncer.init_receiver(state_dict=None, recv=received, send=None)
        self._engine.begin_weight_update()
        try:
            version = await self.weight_syncer.apply(self._target, received)
            self._engine.finish_weight_update(version=version)
        except Exception:
            self._engine.abort_weight_update()
            raise
        self.version = version

    def set_global_step(self, global_step: int) -> None:
        self.steps = (*self.steps, global_step)
