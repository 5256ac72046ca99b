import importlib.util

import numpy as np
import pytest

from dsindex.datasets.instruction import InstructionCollator, stack_blocks
from dsindex.errors import InputError, RecordProblem
from dsindex.instruction.blocks import assemble_block
from dsindex.instruction.config import parse_config
from tests.support.chat_tokenizers import train
from tests.support.conversations import HUMAN, config


def sample(*texts, role="S"):
    """Return what InstructionDataset gives: the fields with their tokens."""
    encode = train("bytes").encode
    turns = [
        {"from": ("human", "gpt")[i % 2], "value": text, "tokens": encode(text).ids} for i, text in enumerate(texts)
    ]
    return {
        "role": {"value": role, "tokens": encode(role).ids},
        "conversations": turns,
        "special_tokens": {"bos_token": 0, "eos_token": 1},
    }


def ids(text):
    return [int(i) for i in train("bytes").encode(text).ids]


def test_padded_batch_shifts_targets_inside_each_row():
    batch = InstructionCollator(config(HUMAN), train("bytes"))([sample("who", "you"), sample("Go", "by")])
    first = [0, *ids("S"), *ids("who"), *ids("you"), 1]
    second = [0, *ids("S"), *ids("Go"), *ids("by"), 1]
    width = len(first)
    assert (width, len(second)) == (7, 5)
    assert batch.tokens.tolist() == [first, [*second, 1, 1]]
    assert batch.targets.tolist() == [[*first[1:], 1], [*second[1:], 1, 1, 1]]
    # "you" and the EOS are trained on where they are predicted: one place before they stand.
    assert batch.loss_mask.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 0, 1]]
    assert batch.attention_lengths.tolist() == [7, 5]
    assert [row.tolist() for row in batch.sequence_boundaries] == [[0, 7], [0, 5]]
    assert (batch.tokens.dtype, batch.loss_mask.dtype) == (np.int64, np.float32)


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


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        pytest.param({"layout": "packed"}, ValueError, "sequence_length", id="packed-without-length"),
        pytest.param({"sequence_length": 4}, RecordProblem, "at most 4 tokens in a sample, got 7", id="too-long"),
    ],
)
def test_collator_refuses(options, error, match):
    with pytest.raises(error, match=match):
        InstructionCollator(config(HUMAN), train("bytes"), **options)([sample("who", "you")])


def test_collator_needs_a_construction_and_a_pad_token():
    with pytest.raises(InputError, match="expected message_construction"):
        InstructionCollator(parse_config("chat_template: chatml"), train("bytes"))
    with pytest.raises(InputError, match="pad_token or eos_token"):
        InstructionCollator(parse_config("message_construction: [role]"), train("bytes"))


def test_sample_without_anything_to_learn_is_a_problem():
    with pytest.raises(RecordProblem, match="at least one token to learn"):
        InstructionCollator(config(HUMAN), train("bytes"))([sample("who")])


def test_block_refuses_what_does_not_fit():
    tokens = np.arange(3)
    with pytest.raises(ValueError, match="at most 5 tokens in a block, got 6"):
        assemble_block([(tokens, tokens), (tokens, tokens)], sequence_length=5, pad_id=0)
    with pytest.raises(ValueError, match="a mask for each of 3 tokens, got 2"):
        assemble_block([(tokens, tokens[:2])], sequence_length=5, pad_id=0)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is an extra")
def test_batch_is_given_as_torch_tensors():
    import torch

    block = assemble_block([(np.arange(3), np.ones(3))], sequence_length=4, pad_id=0)
    batch = stack_blocks([block], as_torch=True)
    assert torch.equal(batch.tokens, torch.tensor([[0, 1, 2, 0]]))
    assert batch.loss_mask.dtype == torch.float32
