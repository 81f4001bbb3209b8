import json

import numpy as np
import pytest

from configs.errors import DataError
from policies.instructions import InstructionVocabulary, words_of

INSTRUCTIONS = ("Reach the red block!", "push the BLUE block onto the pad")


def test_words_are_lower_case_letters() -> None:
    assert words_of("Pick-up the 2 Red_blocks,now") == ["pick", "up", "the", "red", "blocks", "now"]


def test_ids_and_padding() -> None:
    vocabulary = InstructionVocabulary(INSTRUCTIONS)
    # In order: block blue onto pad push reach red the, from 1.
    assert vocabulary.num_words == 9
    ids = vocabulary.encode(["reach the red block", "push the blue block onto the pad"])
    assert ids.dtype == np.int64
    assert ids.tolist() == [[6, 8, 7, 1, 0, 0, 0], [5, 8, 2, 1, 3, 8, 4]]


def test_any_known_words_may_be_combined_and_rows_are_independent() -> None:
    vocabulary = InstructionVocabulary(INSTRUCTIONS)
    first = vocabulary.encode(["reach the blue pad"])
    first[:] = 99
    assert vocabulary.encode(["reach the blue pad"]).tolist() == [[6, 8, 2, 4, 0, 0, 0]]


def test_unknown_word_is_named() -> None:
    with pytest.raises(DataError, match=r'the word "green".*pretrain the policy'):
        InstructionVocabulary(INSTRUCTIONS).encode(["reach the green block"])


def test_too_many_words() -> None:
    with pytest.raises(DataError, match="has 8 words, the policy reads 7"):
        InstructionVocabulary(INSTRUCTIONS).encode(["the the the the the the the the"])


def test_empty() -> None:
    assert InstructionVocabulary([""]).encode(["", ""]).tolist() == [[0], [0]]
    assert InstructionVocabulary(INSTRUCTIONS).encode([]).shape == (0, 7)


def test_json() -> None:
    vocabulary = InstructionVocabulary(INSTRUCTIONS)
    again = InstructionVocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    assert again.encode(INSTRUCTIONS).tolist() == vocabulary.encode(INSTRUCTIONS).tolist()
