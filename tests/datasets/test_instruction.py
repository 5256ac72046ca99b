import json
from pathlib import Path

import numpy as np
import pytest

from dsindex.chat.config import parse_config
from dsindex.chat.encode import InstructionEncoder
from dsindex.chat.packing import lay_out_blocks
from dsindex.datasets.instruction import (
    InstructionCollator,
    InstructionDataset,
    PackedInstructionDataset,
    packing_prefix,
    stack_blocks,
)
from dsindex.errors import FormatError, InputError, RecordProblem, TokenizerError
from tests.support.chat_tokenizers import KINDS, train
from tests.support.conversations import SPEC_RECORD, SPEC_YAML, conversation
from tests.support.datasets import write_dataset

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
PATTERNS = [".conversations", ".role", ".instruction"]
RECORDS = [SPEC_RECORD, conversation("Привет", "日本🎉 \n", role="r", instruction="i"), {"id": 3}]


@pytest.fixture
def jsonl(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(record, ensure_ascii=bool(i % 2)) + "\n" for i, record in enumerate(RECORDS)))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_dataset_and_collator_give_what_the_encoder_gives(jsonl, kind):
    config, tokenizer = parse_config(SPEC_YAML), train(kind)
    dataset = InstructionDataset(jsonl, tokenizer=tokenizer, jq_patterns=PATTERNS, special_tokens=SPECIAL)
    collator, encoder = InstructionCollator(config, tokenizer), InstructionEncoder(config, tokenizer)
    assert len(dataset) == 3
    for number in range(2):
        tokens, mask = collator.encode(dataset[number])
        encoded = encoder.encode(RECORDS[number])
        assert (tokens.tolist(), mask.tolist()) == (encoded.tokens.tolist(), encoded.mask.tolist())


def test_dataset_checks_its_tokens_patterns_and_fields(jsonl):
    def open_with(patterns, special):
        return InstructionDataset(jsonl, tokenizer=train("bytes"), jq_patterns=patterns, special_tokens=special)

    with pytest.raises(TokenizerError, match="not a single id of its own"):
        open_with(PATTERNS, {"eod_token": "<eod>"})
    with pytest.raises(InputError, match="cannot be called 'special_tokens'"):
        open_with([".special_tokens"], {})
    with pytest.raises(RecordProblem, match="field 'id' is neither a text nor a list"):
        open_with([".id"], {})[0]
    with pytest.raises(InputError, match="cannot be read"):
        InstructionDataset("nosuch.jsonl", tokenizer=train("bytes"), jq_patterns=PATTERNS, special_tokens={})


def write_chat(folder, lengths):
    rng = np.random.default_rng(len(lengths))
    texts = [rng.integers(10, 60_000, length) for length in lengths]
    masks = [rng.integers(0, 2, length) for length in lengths]
    write_dataset(folder / "chat_text_document", [[text.tolist()] for text in texts])
    write_dataset(folder / "chat_loss_mask", [[mask.tolist()] for mask in masks], dtype="<u1")
    return str(folder / "chat"), texts, masks


def test_packed_dataset_gives_every_conversation_once_with_its_mask(tmp_path):
    prefix, texts, masks = write_chat(tmp_path, [5, 3, 8, 1, 7, 2, 4])
    dataset = PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
    seen = []
    for number in range(len(dataset)):
        block = dataset[number]
        ids = dataset.plan.block(number).tolist()
        seen += ids
        begin = 0
        for i in ids:
            end = begin + len(texts[i])
            assert block.tokens[begin:end].tolist() == texts[i].tolist()
            assert block.targets[begin : end - 1].tolist() == texts[i][1:].tolist()
            assert block.loss_mask[begin:end].tolist() == [*masks[i][1:].tolist(), 0]
            begin = end
        assert block.tokens[begin:].tolist() == [0] * (8 - begin)
        assert not block.loss_mask[begin:].any()
        assert block.sequence_boundaries.tolist() == np.cumsum([0, *(len(texts[i]) for i in ids)]).tolist()
    assert sorted(seen) == list(range(7))
    assert stack_blocks([dataset[0], dataset[-1]]).tokens.shape == (2, 8)
    with pytest.raises(IndexError, match="there is no block "):
        dataset[4]


def test_packed_dataset_reads_the_plan_that_is_there(tmp_path):
    prefix, _, _ = write_chat(tmp_path, [4, 4, 4, 4])
    write_dataset(Path(packing_prefix(prefix, 8)), [[[0, 3]], [[2]], [[1]]], dtype="<i4")
    dataset = PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
    assert [dataset.plan.block(number).tolist() for number in range(3)] == [[0, 3], [2], [1]]
    assert dataset.plan.fill == pytest.approx(16 / 24)
    plan = PackedInstructionDataset(prefix, sequence_length=9, pad_id=0).plan
    assert plan.conversations.tolist() == lay_out_blocks([4] * 4, sequence_length=9).conversations.tolist()


@pytest.mark.parametrize("blocks", [
    [[0, 1], [1, 2]], [[0, 1], [3]], [[0, -1], [2]], [[0, 1, 2]],
], ids=["twice", "no-such", "negative", "too-full"])  # fmt: skip
def test_plan_of_other_data_is_refused(tmp_path, blocks):
    prefix, _, _ = write_chat(tmp_path, [3, 3, 3])
    write_dataset(Path(packing_prefix(prefix, 8)), [[block] for block in blocks], dtype="<i4")
    with pytest.raises(FormatError, match=r"(does not have each of 3 sequences once|a block has 9 tokens)"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)


def test_masks_of_other_data_are_refused(tmp_path):
    prefix, texts, masks = write_chat(tmp_path, [5, 3])
    write_dataset(tmp_path / "chat_loss_mask", [[mask.tolist()] for mask in masks[::-1]], dtype="<u1")
    with pytest.raises(FormatError, match=r"not a uint8 mask for every token of .*chat_text_document\.idx"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
    write_dataset(tmp_path / "chat_loss_mask", [[text.tolist()] for text in texts])
    with pytest.raises(FormatError, match="not a uint8 mask for every token"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
