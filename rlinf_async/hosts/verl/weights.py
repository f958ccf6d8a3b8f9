"""The weights of a policy that veRL's engine trains, as inference is to have them."""

from __future__ import annotations

from rlinf_async.core.host_memory import wait_for
from rlinf_async.hosts.verl.engine import PolicyEngine
from rlinf_async.ray_runtime.publication.weights import CopiedWeights, Taken


class EngineWeights(CopiedWeights):
    """Copies a policy's weights to memory that inference maps; fills `WeightCopy`.

    One tensor at a time is gathered from its shards, so that no second copy of the model is made on the
    device.
    """

    def __init__(self, engine: PolicyEngine, *, sends: bool) -> None:
        super().__init__()
        self._engine = engine
        self._sends = sends

    def take(self) -> Taken | None:
        self._engine.reshard()
        module = self._engine.module
        state = module.state_dict()
        frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
        names = self.choose(state, changing=state.keys() - frozen)
        places = self.places({name: state[name] for name in names}) if self._sends else {}
        parameters, _ = self._engine.get_per_tensor_param(names=set(names))
        for name, tensor in parameters:  # every rank takes part
            if places:
                self.write(places[name], tensor)
                wait_for(tensor)  # before the gathered tensor is freed
        return self.copied()
