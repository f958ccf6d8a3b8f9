"""What is sent of the learner's weights, and the memory that it is copied to."""

from __future__ import annotations

from rlinf_async.core.host_memory import wait_for
from rlinf_async.hosts.verl.engine import PolicyEngine
from rlinf_async.ray_runtime.weights import Chunk, Types, chunks_of, places_for


class EngineWeights:
    """Copies a policy's weights to CPU memory; fills `ray_runtime.weights.WeightCopy`.

    The first copy holds all weights, so that the receivers' frozen ones are the learner's too; later ones
    what training changes, parameters that are trained and buffers. One tensor at a time is gathered from its
    shards, so that no second copy of the model is made on the device.
    """

    def __init__(self, engine: PolicyEngine, *, sends: bool) -> None:
        self._engine = engine
        self._sends = sends
        self._complete = False
        self._memory: Chunk = {}
        self.types: Types = {}

    def take(self) -> list[Chunk]:
        """The weights in chunks of bounded size; nothing on ranks that do not send."""
        self._engine.reshard()
        names = self._names()
        memory: Chunk = {}
        if self._sends:
            state = self._engine.module.state_dict()
            memory = places_for({name: state[name] for name in names}, self.types, self._memory)
        parameters, _ = self._engine.get_per_tensor_param(names=names)
        for name, tensor in parameters:  # every rank takes part
            if self._sends:
                place = memory[name]
                # Converted on its own device; done before the gathered tensor is freed.
                place.copy_(tensor.detach().to(place.dtype), non_blocking=True)
                wait_for(tensor)
        self._complete = True
        self._memory = memory if memory.keys() == self._names() else {}
        return chunks_of(memory)

    def _names(self) -> set[str]:
        """Names of the tensors that are sent next.

        Raises:
            ValueError: there are none.
        """
        module = self._engine.module
        frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        all_names = {name for name in module.state_dict() if "_extra_state" not in name}
        names = {
            name
            for name in all_names
            if (not self._complete or name not in frozen) and (not self.types or name in self.types)
        }
        if not names:
            raise ValueError(
                f"none of the learner's {len(all_names)} tensors has a name that inference knows"
            )
        return names
