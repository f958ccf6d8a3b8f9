import pytest
import torch

from rlinf_async.hosts.contract import Contract
from rlinf_async.hosts.observations import with_echoes, without_echoes


def picture(seed, size=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size, 8, 8, 3), dtype=torch.uint8, generator=generator)


@pytest.fixture
def observation():
    return {
        "main_images": picture(0),
        "wrist_images": picture(1),
        "extra_view_images": None,
        "states": torch.rand(2, 4),
        "task_descriptions": ["press"] * 2,
    }


def test_only_what_was_shown_stays_behind(observation):
    inputs = {
        "observation/image": observation["main_images"].clone(),
        "observation/wrist_image": observation["wrist_images"].clone(),
        "states": observation["states"],
        "cropped": observation["main_images"][:, :4],
        "brightened": observation["main_images"] + 1,
        "action": torch.rand(2, 4),
    }
    kept, echoes = without_echoes(inputs, observation)
    assert echoes == {"observation/image": "main_images", "observation/wrist_image": "wrist_images"}
    assert list(kept) == ["states", "cropped", "brightened", "action"]
    again = with_echoes(kept, echoes, observation)
    assert again.keys() == inputs.keys()
    assert all(torch.equal(again[name], value) for name, value in inputs.items())


def test_pictures_of_another_type_travel(observation):
    inputs = {"images": observation["main_images"].float()}
    assert without_echoes(inputs, observation) == (inputs, {})


def test_what_comes_back_is_the_shards_copy_and_not_the_environments_own_memory(observation):
    own = Contract(0, 2).observation(observation)
    kept, echoes = without_echoes({"images": own["main_images"].clone()}, own)
    again = with_echoes(kept, echoes, own)["images"]
    assert again is own["main_images"]  # which is copied no second time
    shown = again.clone()
    observation["main_images"].zero_()
    assert torch.equal(again, shown)
