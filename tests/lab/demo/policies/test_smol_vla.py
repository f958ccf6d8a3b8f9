import pytest
import torch

from rlinf_async.lab.demo.policies.smol_vla_policy import SmolVLA, Tokens, tokenise
from rlinf_async.lab.demo.policies.smol_vla_settings import SmolVLASettings

SETTINGS = SmolVLASettings(state_dim=6, action_dim=3, num_action_chunks=4, image_size=32)


@pytest.fixture(scope="module")
def policy():
    torch.manual_seed(0)
    return SmolVLA(SETTINGS).eval()


def inputs(batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (batch, 32, 32, 3), dtype=torch.uint8, generator=generator)
    words = ["push", "open the very first drawer", "press the button"]
    tokens = tokenise([words[index % 3] for index in range(batch)], SETTINGS.instruction_length)
    return images, tokens, torch.randn(batch, 6, generator=generator)


def rows(arguments, chosen):
    images, tokens, states = arguments
    return images[chosen], Tokens(tokens.ids[chosen], tokens.mask[chosen]), states[chosen]


def test_a_batch_gives_a_chunk_of_gaussians_and_one_value_each(policy):
    output = policy(*inputs(5))
    assert output.mean.shape == output.std.shape == output.entropy().shape == (5, 4, 3)
    assert output.value.shape == (5, 1)
    assert output.log_prob(output.mean).shape == (5, 4, 3)


@pytest.mark.parametrize("chosen", [[0], [4, 2], [1, 2, 3, 4, 5, 6]])
def test_a_sample_does_not_depend_on_the_batch_it_is_in(policy, chosen):
    arguments = inputs(7)
    whole, part = policy(*arguments), policy(*rows(arguments, chosen))
    assert torch.allclose(whole.mean[chosen], part.mean, atol=1e-6)
    assert torch.allclose(whole.value[chosen], part.value, atol=1e-6)


def test_picture_instruction_and_state_each_change_the_action(policy):
    images, tokens, states = inputs(1)
    mean = policy(images, tokens, states).mean
    other = tokenise(["close the window"], SETTINGS.instruction_length)
    for changed in ((255 - images, tokens, states), (images, other, states), (images, tokens, -states)):
        assert not torch.allclose(mean, policy(*changed).mean, atol=1e-5)


def test_black_pictures_are_seen_too(policy):
    images, tokens, states = inputs(3)
    images[1] = 0
    alone = policy(*rows((images, tokens, states), [1])).mean
    assert torch.allclose(policy(images, tokens, states).mean[[1]], alone, atol=1e-6)


def test_every_parameter_learns(policy):
    output = policy(*inputs(2))
    (output.log_prob(output.mean.detach() + 0.1).sum() + output.value.sum()).backward()
    assert [name for name, tensor in policy.named_parameters() if tensor.grad is None] == []


def test_the_density_integrates_with_its_own_samples(policy):
    output = policy(*inputs(1))
    samples = torch.normal(output.mean.expand(4000, 4, 3), output.std.expand(4000, 4, 3))
    assert torch.allclose(-output.log_prob(samples).mean(dim=0), output.entropy()[0], atol=0.06)


def test_instructions_are_cut_and_padded_to_one_length():
    tokens = tokenise(["ab", "x" * 100, "é"], 8)
    assert tokens.ids.shape == (3, 8)
    assert tokens.mask.sum(dim=1).tolist() == [2, 8, 2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": 40}, "image_size=40"),
        ({"num_action_chunks": 0}, "num_action_chunks"),
        ({"heads": 5}, "heads=5"),
    ],
)
def test_impossible_sizes_are_named(changes, words):
    sizes = {"state_dim": 6, "action_dim": 3, "num_action_chunks": 4, **changes}
    with pytest.raises(ValueError, match=words):
        SmolVLASettings(**sizes)


def test_a_picture_of_another_size_is_refused(policy):
    _, tokens, states = inputs(1)
    with pytest.raises(ValueError, match="64"):
        policy(torch.zeros(1, 64, 64, 3, dtype=torch.uint8), tokens, states)
