"""Instructions as word ids: the vocabulary is made of the words that the environment's instructions use."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataError

PADDING = 0
_WORD = re.compile(r"[^\W\d_]+")


def words_of(instruction: str) -> list[str]:
    """Lower-cased words, split on everything that is not a letter."""
    return _WORD.findall(instruction.lower())


class InstructionVocabulary:
    """Word-level ids in alphabetical order from 1; 0 pads to the longest known instruction."""

    def __init__(self, instructions: Sequence[str]) -> None:
        self.instructions = tuple(dict.fromkeys(instructions))
        split = [words_of(text) for text in self.instructions]
        self._ids = {word: i + 1 for i, word in enumerate(sorted({w for words in split for w in words}))}
        self.length = max([1, *(len(words) for words in split)])
        self._rows: dict[str, NDArray[np.int64]] = {}

    @property
    def num_words(self) -> int:
        """Number of ids, padding included."""
        return len(self._ids) + 1

    def encode(self, instructions: Sequence[str]) -> NDArray[np.int64]:
        """Ids ``[B, L]`` int64, padded with 0.

        Raises DataError for a word that is not in the vocabulary, or more words than L.
        """
        if not instructions:
            return np.zeros((0, self.length), dtype=np.int64)
        return np.stack([self._row(text) for text in instructions])

    def to_json(self) -> dict[str, object]:
        """As JSON types; ``from_json`` is the inverse."""
        return {"instructions": list(self.instructions)}

    @staticmethod
    def from_json(data: dict[str, object]) -> InstructionVocabulary:
        """Read what ``to_json`` wrote."""
        return InstructionVocabulary(**data)  # type: ignore[arg-type]

    def _row(self, instruction: str) -> NDArray[np.int64]:
        if instruction not in self._rows:
            self._rows[instruction] = self._encode_one(instruction)
        return self._rows[instruction]

    def _encode_one(self, instruction: str) -> NDArray[np.int64]:
        words = words_of(instruction)
        if len(words) > self.length:
            raise DataError(
                f'"{instruction}" has {len(words)} words, the policy reads {self.length}',
                where="instruction",
                remedy="shorten it, or pretrain the policy with the instructions of this environment",
            )
        for word in words:
            if word not in self._ids:
                raise DataError(
                    f'the word "{word}" of "{instruction}" is not in the policy\'s vocabulary',
                    where="instruction",
                    remedy=f"use the words {', '.join(self._ids)}, or pretrain the policy with this instruction",
                )
        row = np.full(self.length, PADDING, dtype=np.int64)
        row[: len(words)] = [self._ids[word] for word in words]
        return row
