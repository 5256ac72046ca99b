import numpy as np
import pytest

from dsindex.instruction.encoder import EncodedConversation
from dsindex.instruction.splits import fingerprint_content, split_by_hash
from dsindex.instruction.statistics import InstructionStatistics


def test_split_has_its_shares_and_depends_on_content_and_seed_only():
    prints = [fingerprint_content({"messages": i}) for i in range(20_000)]
    parts = [split_by_hash(mark, fractions=(8, 1, 1)) for mark in prints]
    assert parts == [split_by_hash(mark, fractions=(0.8, 0.1, 0.1)) for mark in prints]
    assert [parts.count(name) / 20_000 for name in ("train", "valid", "test")] == pytest.approx(
        [0.8, 0.1, 0.1], abs=0.01
    )
    assert parts != [split_by_hash(mark, fractions=(8, 1, 1), seed=5) for mark in prints]


def test_split_is_pinned():
    """Changing it moves conversations between train and test."""
    prints = [fingerprint_content({"n": i, "text": "é"}) for i in range(12)]
    assert fingerprint_content({"text": "é", "n": 0}) == prints[0]
    assert prints[0].hex() == PINNED_FINGERPRINT
    assert "".join(split_by_hash(mark, fractions=(1, 1, 1))[1] for mark in prints) == PINNED_SPLIT


PINNED_FINGERPRINT = "4975c8d80141c7334e918eadbe0e3808"
PINNED_SPLIT = "eeaaaarrerer"


@pytest.mark.parametrize("fractions", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_part_without_a_share_gets_nothing(fractions):
    names = {split_by_hash(fingerprint_content(i), fractions=fractions) for i in range(500)}
    assert names == {("train", "valid", "test")[fractions.index(1)]}


@pytest.mark.parametrize("fractions", [(0, 0, 0), (1, 1), (2, -1, 0), (float("nan"), 1, 1), (float("inf"), 1, 1)])
def test_split_refuses_fractions_that_are_none(fractions):
    with pytest.raises(ValueError, match="three fractions"):
        split_by_hash(bytes(16), fractions=fractions)


def test_statistics_add_up():
    encoded = EncodedConversation(
        tokens=np.zeros(6, np.uint32),
        mask=np.array([0, 0, 1, 0, 1, 1], np.uint8),
        lengths=np.array([4, 2]),
        read_content=list,
        cut=2,
        special_in_text=True,
    )
    total = InstructionStatistics.of([encoded], learnt=3) + InstructionStatistics.of([encoded], learnt=3)
    assert total == InstructionStatistics(
        conversations=2, sequences=4, tokens=12, learnt=6, cut=4, shortened=2, special_in_text=2
    )
    assert total.describe() == (
        "2 conversations, 4 sequences, 12 tokens, 6 trainable (50.0 %), 4 cut off, 2 too long and truncated or split"
    )
    assert (
        InstructionStatistics().describe() == "0 conversations, 0 sequences, 0 tokens, 0 trainable (0.0 %), 0 cut off"
    )
