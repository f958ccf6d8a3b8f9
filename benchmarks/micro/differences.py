"""The difference of two versions of trained weights: its length, and CPU time to make it and to apply it."""

from __future__ import annotations

import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rlinf_async.ray_runtime.publication import weight_difference
from rlinf_async.ray_runtime.publication.weight_mirror import PART_BYTES

RATES = (1e-6, 2e-6, 5e-6)
"""Learning rates of AdamW."""
STEP_COUNTS = (1, 16)
"""Optimizer steps between the two versions."""
WARM_UP_STEPS = 10
"""Adam's first steps are longer than those that follow."""
MINI_BATCHES = 4
"""PPO trains those of a global batch in turn, too: steps of few batches have much in common."""
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
VOCABULARY, WIDTH, HEADS, LAYERS, SAMPLES, TOKENS = 512, 256, 4, 4, 8, 32
WEIGHT_SCALE = 0.02

PUBLISHED, CHANGED_WORDS = "published", "changed words"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self._norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self._inputs, self._outputs = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self._up, self._down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (
            self._inputs(self._norms[0](x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        )
        heads = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self._outputs(heads.transpose(1, 2).reshape(x.shape))
        return x + self._down(functional.gelu(self._up(self._norms[1](x))))


class Transformer(torch.nn.Module):
    """A language model of 3.3 million weights in float32."""

    def __init__(self) -> None:
        super().__init__()
        self._embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self._blocks = torch.nn.Sequential(*(Block() for _ in range(LAYERS)), torch.nn.LayerNorm(WIDTH))
        for parameter in self.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=WEIGHT_SCALE)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._blocks(self._embedding(tokens)) @ self._embedding.weight.T


def trained(rate: float, step_counts: Sequence[int]) -> Iterator[tuple[torch.Tensor, int]]:
    """Train with AdamW at the learning rate `rate`; return all weights after each number of steps, and 0."""
    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    # Each token has few successors, and the model has to learn them.
    successors = torch.randint(VOCABULARY, (VOCABULARY, 4))
    batches = []
    for _ in range(MINI_BATCHES):
        tokens = [torch.randint(VOCABULARY, (SAMPLES,))]
        for _ in range(TOKENS):
            tokens.append(successors[tokens[-1], torch.randint(4, (SAMPLES,))])
        batches.append(torch.stack(tokens, 1))
    for step in range(-WARM_UP_STEPS, max(step_counts) + 1):
        if step in (0, *step_counts):
            yield torch.cat([each.detach().flatten() for each in model.parameters()]), step
        tokens_of_step = batches[step % MINI_BATCHES]
        scores = model(tokens_of_step[:, :-1]).flatten(0, 1)
        optimizer.zero_grad()
        functional.cross_entropy(scores, tokens_of_step[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def bytes_of(weights: torch.Tensor, kind: torch.dtype) -> np.ndarray:
    """Return the bytes of `weights` as receivers in `kind` have them."""
    data: np.ndarray = weights.to(kind).view(torch.uint8).numpy()
    return data


# -- ways to write a difference --


@dataclass(frozen=True)
class Way:
    encode: Callable[[np.ndarray, np.ndarray], Any]
    """Makes a difference of the old and the new bytes."""
    apply: Callable[[np.ndarray, Any], None]
    """Makes the new bytes of the old ones, in place."""
    length: Callable[[Any], int] = len


def ways() -> dict[str, Way]:
    """Return ways by name; zstd's where it is installed."""
    found = {
        PUBLISHED: Way(_published, _apply_published),
        CHANGED_WORDS: Way(changed_words, write_words, lambda words: sum(each.nbytes for each in words)),
        "xor, zlib 1": Way(
            lambda old, new: zlib.compress(old ^ new, 1),
            lambda target, data: _xor(target, zlib.decompress(data)),
        ),
        "planes, zlib 1": _planes(lambda data: zlib.compress(data, 1), zlib.decompress),
    }
    if find_spec("zstandard") is None:
        print("without zstd: `pip install zstandard` has it measured, too", file=sys.stderr)
        return found
    import zstandard

    to, back = zstandard.ZstdCompressor(level=1).compress, zstandard.ZstdDecompressor().decompress
    return {**found, "planes, zstd 1": _planes(to, back)}


def _published(old: np.ndarray, new: np.ndarray) -> bytes | np.ndarray:
    """Return the sent bytes: the difference, or the bytes themselves if the difference is longer."""
    difference = weight_difference.encode(old, new)
    return new if difference is None else difference


def _apply_published(target: np.ndarray, data: bytes | np.ndarray) -> None:
    if isinstance(data, bytes):
        weight_difference.apply(target, data)
    else:
        target[:] = data


def changed_words(old: np.ndarray, new: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the words of 16 bits that have changed, and where they stand: 4 bytes for each."""
    words = new.view(np.uint16)
    places = np.flatnonzero(old.view(np.uint16) != words)
    blocks, places_in_block = np.divmod(places, 2**16)
    return np.bincount(blocks), places_in_block.astype(np.uint16), words[places]


def write_words(target: np.ndarray, difference: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    counts, places_in_block, words = difference
    target.view(np.uint16)[np.repeat(np.arange(len(counts)) * 2**16, counts) + places_in_block] = words


def _xor(target: np.ndarray, data: bytes) -> None:
    target ^= np.frombuffer(data, np.uint8)


def _planes(compress: Callable[[Any], bytes], decompress: Callable[[bytes], bytes]) -> Way:
    """The moves of words, with the sign in the lowest bit; all low bytes, then all high ones, compressed."""

    def encode(old: np.ndarray, new: np.ndarray) -> bytes:
        moves = new.view(np.uint16) - old.view(np.uint16)
        folded = (moves << 1) ^ -(moves >> 15)
        return compress(np.ascontiguousarray(folded.view(np.uint8).reshape(-1, 2).T))

    def apply(target: np.ndarray, data: bytes) -> None:
        planes = np.frombuffer(decompress(data), np.uint8).reshape(2, -1)
        folded = np.ascontiguousarray(planes.T).view(np.uint16).ravel()
        words = target.view(np.uint16)
        words += (folded >> 1) ^ -(folded & 1)

    return Way(encode, apply)


def _seen(way: Way, old: np.ndarray, new: np.ndarray) -> dict[str, float]:
    """Return the share of the bytes that a difference has, and CPU seconds a gigabyte."""
    target, began = old.copy(), time.process_time()
    difference = way.encode(old, new)
    encoded = time.process_time()
    way.apply(target, difference)
    applied = time.process_time()
    if not np.array_equal(target, new):
        raise RuntimeError("a difference does not make the new bytes of the old ones")
    per_gigabyte = 1e9 / len(new)
    return {
        "share": way.length(difference) / len(new),
        "encode_cpu_s_per_gb": (encoded - began) * per_gigabyte,
        "apply_cpu_s_per_gb": (applied - encoded) * per_gigabyte,
    }


def measure(rounds: int, rates: int) -> dict[str, Any]:
    """Measure all ways by turns on as many bytes as travel at a time, for the first `rates` of `RATES`.

    Returns:
        Medians, and the CPU time of the published way over that of changed words.
    """
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for rate in RATES[:rates]:
        (before, _), *later = trained(rate, STEP_COUNTS)
        for after, steps in later:
            for name, kind in TYPES.items():
                old, new = (np.resize(bytes_of(each, kind), PART_BYTES) for each in (before, after))
                case = f"lr {rate:g}, {steps} optimizer step{'s' * (steps > 1)}, {name}"
                found[case] = _by_turns(rounds, old, new)
    return {"rounds": rounds, "warm_up_steps": WARM_UP_STEPS, "cases": found}


def _by_turns(rounds: int, old: np.ndarray, new: np.ndarray) -> dict[str, Any]:
    compared = ways()
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in compared}
    for _ in range(rounds):
        for name, way in compared.items():
            seen[name].append(_seen(way, old, new))
    medians = {
        name: {key: round(statistics.median(one[key] for one in observed), 3) for key in observed[0]}
        for name, observed in seen.items()
    }
    cpu = {name: statistics.median(_cpu_s(one) for one in observed) for name, observed in seen.items()}
    return {**medians, f"CPU, {PUBLISHED} / {CHANGED_WORDS}": round(cpu[PUBLISHED] / cpu[CHANGED_WORDS], 3)}


def _cpu_s(seen: dict[str, float]) -> float:
    return seen["encode_cpu_s_per_gb"] + seen["apply_cpu_s_per_gb"]
