"""The least that a host has to fill in to publish weights, and what is then to be read."""

from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights
from rlinf_async.ray_runtime.publication.weights import WeightCopy


class Copy(WeightCopy):
    """Copies the state of a model, of which training changes what `changing` names, or all."""

    def __init__(self, model, changing=None, *, sends=True):
        super().__init__()
        self.model, self.sends = model, sends
        self.changing = model.state_dict() if changing is None else changing

    def take(self):
        state = self.model.state_dict()
        names = self.choose(state, changing=self.changing)
        if self.sends:
            for name, place in self.places({name: state[name] for name in names}).items():
                self.write(place, state[name])
        return self.snapshot()


def read(place):
    with OpenedWeights(place) as tensors:
        return {name: tensor.clone() for name, tensor in tensors.items()}
