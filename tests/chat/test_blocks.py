"""Conversations in blocks: packing against a slow reference, batches, splits and statistics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsindex.chat.config import parse_config
from dsindex.chat.packing import lay_out_blocks
from dsindex.chat.statistics import fingerprint_content, split_by_hash
from dsindex.datasets.instruction import InstructionCollator
from dsindex.errors import InputError, LimitError, RecordProblem
from tests.support.chat_tokenizers import train
from tests.support.conversations import HUMAN, config, conversation


def reference_blocks(lengths, capacity):
    """Best fit, the longest first, by looking at every block each time."""
    blocks, free, filled_at = [], [], []
    for time, number in enumerate(sorted(range(len(lengths)), key=lambda i: -lengths[i])):
        size = lengths[number]
        if not any(room >= size for room in free):
            blocks.append([])
            free.append(capacity)
            filled_at.append(0)
        block = min((b for b in range(len(blocks)) if free[b] >= size), key=lambda b: (free[b], -filled_at[b], b))
        blocks[block].append(number)
        free[block] -= size
        filled_at[block] = time
    return sorted(sorted(block) for block in blocks)


def blocks_of(plan):
    return [plan.block(number).tolist() for number in range(plan.num_blocks)]


@settings(max_examples=200)
@given(data=st.data(), multiple=st.sampled_from([1, 1, 2, 4, 6]), times=st.integers(1, 70))
def test_plan_is_that_of_the_slow_reference(data, multiple, times):
    """Of padded lengths; conversations that are longer than a block are left out."""
    capacity = times * multiple
    lengths = data.draw(st.lists(st.integers(1, data.draw(st.integers(1, capacity + 3))), max_size=40))
    fitting_numbers = [number for number, length in enumerate(lengths) if length <= capacity]
    plan = lay_out_blocks(lengths, sequence_length=capacity, pad_to_multiple=multiple, drop_longer=True)
    expected = reference_blocks([-(-lengths[number] // multiple) * multiple for number in fitting_numbers], capacity)
    assert sorted(blocks_of(plan)) == [[fitting_numbers[place] for place in block] for block in expected]
    assert plan.num_tokens == sum(lengths[number] for number in fitting_numbers)
    assert plan.num_padding == plan.num_blocks * capacity - plan.num_tokens


def test_order_of_a_plan_is_pinned():
    """Changing it changes every packed data set."""
    plan = lay_out_blocks([3, 9, 4, 4, 2, 7, 1, 10, 5, 5], sequence_length=10)
    assert blocks_of(plan) == [[1, 6], [0, 5], [8, 9], [2, 3, 4], [7]]


@pytest.mark.parametrize(("lengths", "options", "match"), [
    ([0], {}, "has 0 tokens, not 1 to 8"),
    ([9], {}, "has 9 tokens, not 1 to 8"),
    ([], {"sequence_length": 0}, "less than 1"),
    ([], {"pad_to_multiple": 3}, "a multiple of pad_to_multiple 3"),
    ([1], {"sequence_length": 2**40}, "sequence_length"),
])  # fmt: skip
def test_lengths_out_of_range_are_refused(lengths, options, match):
    with pytest.raises((ValueError, LimitError), match=match):
        lay_out_blocks(lengths, **{"sequence_length": 8, **options})


def sample(*texts):
    """Return what InstructionDataset gives: the fields with their tokens."""
    turns = [{**turn, "tokens": ids(turn["value"])} for turn in conversation(*texts)["conversations"]]
    special = {"bos_token": 0, "eos_token": 1}
    return {"role": {"value": "S", "tokens": ids("S")}, "conversations": turns, "special_tokens": special}


def ids(text):
    return [int(i) for i in train("bytes").encode(text).ids]


def test_packed_batch_keeps_conversations_apart():
    collator = InstructionCollator(config(HUMAN), train("bytes"), layout="packed", sequence_length=13, pad_id=2)
    batch = collator([sample("who", "you"), sample("who", "you"), sample("Go", "by")])
    assert batch.tokens.shape == (2, 13)
    # The third goes to the block that was filled last.
    assert [row.tolist() for row in batch.sequence_boundaries] == [[0, 7], [0, 7, 12]]
    first, third = [0, *ids("S"), *ids("who"), *ids("you"), 1], [0, *ids("S"), *ids("Go"), *ids("by"), 1]
    assert batch.tokens.tolist() == [[*first, *[2] * 6], [*first, *third, 2]]
    assert batch.loss_mask[1].tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert batch.targets[1, 6] == 2
    assert batch.position_ids[1].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize(("options", "error", "match"), [
    ({"layout": "packed"}, ValueError, "sequence_length"),
    ({"sequence_length": 4}, RecordProblem, "a sample of 7 tokens is longer than 4"),
    ({"texts": ["who"]}, RecordProblem, "nothing is trained on"),
    ({"config": parse_config("chat_template: chatml")}, InputError, "the configuration has no message_construction"),
    ({"config": parse_config("message_construction: [role]")}, InputError, "pad_token or eos_token"),
], ids=range(5))  # fmt: skip
def test_collator_refuses(options, error, match):
    arguments = {"config": config(HUMAN), "texts": ["who", "you"], **options}
    texts = arguments.pop("texts")
    with pytest.raises(error, match=match):
        InstructionCollator(tokenizer=train("bytes"), **arguments)([sample(*texts)])


def test_split_has_its_shares_and_depends_on_content_and_seed_only():
    prints = [fingerprint_content({"messages": i}) for i in range(20_000)]
    parts = [split_by_hash(mark, fractions=(8, 1, 1)) for mark in prints]
    assert parts == [split_by_hash(mark, fractions=(0.8, 0.1, 0.1)) for mark in prints]
    shares = [parts.count(name) / 20_000 for name in ("train", "valid", "test")]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert parts != [split_by_hash(mark, fractions=(8, 1, 1), seed=5) for mark in prints]
    assert {split_by_hash(mark, fractions=(0, 1, 0)) for mark in prints} == {"valid"}
    with pytest.raises(ValueError, match="not three numbers"):
        split_by_hash(bytes(16), fractions=(2, -1, 0))


def test_split_is_pinned():
    """Changing it moves conversations between train and test."""
    prints = [fingerprint_content({"n": i, "text": "é"}) for i in range(12)]
    assert fingerprint_content({"text": "é", "n": 0}) == prints[0]
    assert prints[0].hex() == "4975c8d80141c7334e918eadbe0e3808"
    assert "".join(split_by_hash(mark, fractions=(1, 1, 1))[1] for mark in prints) == "eeaaaarrerer"
