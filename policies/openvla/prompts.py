r"""Instructions as prompts: "In: What action should the robot take to {instruction}?\nOut:", begin token first, and the
blank token 29871 (``▁``) last, which stood before the action tokens when OpenVLA was trained.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from configs.errors import CheckpointError, ConfigError
from policies.openvla.shape import SPECIAL_TOKENS

Encode = Callable[[str], list[int]]
"""Text to token ids, the begin token first."""
BEGIN, END = 1, 2
BLANK = "▁"


def prompt_text(instruction: str) -> str:
    """What OpenVLA was asked in training."""
    return f"In: What action should the robot take to {instruction.lower()}?\nOut:"


def byte_encoder() -> Encode:
    """A fresh model's: every byte is a token."""

    def encode(text: str) -> list[int]:
        return [BEGIN, *(SPECIAL_TOKENS + byte for byte in text.encode())]

    return encode


def checkpoint_encoder(folder: Path, vocabulary: int) -> Encode:
    """That of ``tokenizer.json``. Raises CheckpointError where it is missing or of another vocabulary than the weights."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ConfigError(
            "the package tokenizers is not installed",
            where="policy=openvla",
            remedy="pip install 'reverie-rl[vla]'",
        ) from None
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            "tokenizer.json is missing", where=str(folder), remedy="copy the whole checkpoint"
        )
    tokenizer = Tokenizer.from_file(str(path))
    known = tokenizer.get_vocab_size(with_added_tokens=False)
    if known != vocabulary:
        raise CheckpointError(
            f"tokenizer.json has {known} tokens, the weights are of a vocabulary of {vocabulary}",
            where=str(folder), remedy="use the tokenizer of these weights",
        )  # fmt: skip
    blank = tokenizer.token_to_id(BLANK)

    def encode(text: str) -> list[int]:
        ids = list(tokenizer.encode(text).ids)
        ids = ids if ids[:1] == [BEGIN] else [BEGIN, *ids]
        return ids if blank is None or ids[-1] == blank else [*ids, blank]

    return encode
