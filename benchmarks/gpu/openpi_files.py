"""Files that RLinf and openpi read besides a config, for a pi0 or pi0.5 with random weights."""

from __future__ import annotations

import io
import json
from pathlib import Path

TOKENIZER_SENTENCES = (
    "pick up the alphabet soup and place it in the basket",
    "push the black bowl to the front of the stove, then open the middle drawer of the cabinet",
    "Task: , State: 0 1 2 3 4 5 6 7 8 9 10 128 255;",
    "Action:",
)


def write_tokenizer(data_home: Path) -> None:
    """Write a tokenizer of a few hundred pieces to the path of PaliGemma's below
    `OPENPI_DATA_HOME=data_home`.
    """
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TOKENIZER_SENTENCES * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        hard_vocab_limit=False,
        byte_fallback=True,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    file = data_home / "big_vision" / "paligemma_tokenizer.model"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(model.getvalue())


def write_checkpoint(directory: Path, *, data: str, state_dim: int, action_dim: int) -> None:
    """Write a folder for `model_path` without weights; `data` is the data set in the config.

    Its statistics are mean 0 and deviation 1 for `state_dim` and `action_dim` numbers.
    """
    from safetensors.torch import save_file

    def statistics(size: int) -> dict[str, list[float]]:
        return {"mean": [0.0] * size, "std": [1.0] * size, "q01": [-1.0] * size, "q99": [1.0] * size}

    file = directory / data / "norm_stats.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"norm_stats": {"state": statistics(state_dim), "actions": statistics(action_dim)}})
    )
    save_file({}, directory / "model.safetensors")
