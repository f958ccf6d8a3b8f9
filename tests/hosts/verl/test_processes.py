"""Places for the processes of a run, in a Ray that has started."""

import pytest

pytest.importorskip("verl", reason="needs veRL")

import ray

from rlinf_async.hosts.verl.processes import check_places
from tests.hosts.verl.engines import settings

pytestmark = pytest.mark.verl


@pytest.mark.parametrize(
    ("free", "total", "on_gpu", "words"),
    [
        ({"CPU": 2}, {"CPU": 2}, False, "set ray_kwargs.ray_init.num_cpus to at least 3,"),
        ({"CPU": 2}, {"CPU": 4}, False, "set ray_kwargs.ray_init.num_cpus to at least 5,"),
        ({"CPU": 3, "GPU": 1}, {"CPU": 3, "GPU": 1}, True, "use fewer trainer.n_gpus_per_node"),
    ],
)
def test_too_few_places_are_refused_before_anything_waits(monkeypatch, free, total, on_gpu, words):
    monkeypatch.setattr(ray, "available_resources", lambda: free)
    monkeypatch.setattr(ray, "cluster_resources", lambda: total)
    monkeypatch.setattr(ray, "nodes", list)
    with pytest.raises(ValueError, match=words):
        check_places({}, settings(), on_gpu=on_gpu)


def test_enough_places_are_enough(monkeypatch):
    for name in ("available_resources", "cluster_resources"):
        monkeypatch.setattr(ray, name, lambda: {"CPU": 3, "GPU": 2})
    monkeypatch.setattr(ray, "nodes", list)
    check_places({}, settings(), on_gpu=True)
