import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dsindex.datasets.instruction import (
    InstructionCollator,
    InstructionDataset,
    PackedInstructionDataset,
    packing_prefix,
    stack_blocks,
)
from dsindex.errors import FormatError, InputError, RecordProblem, TokenizerError
from dsindex.instruction.blocks import lay_out_blocks
from dsindex.instruction.config import parse_config
from dsindex.instruction.encoder import InstructionEncoder
from tests.support.chat_tokenizers import KINDS, train
from tests.support.conversations import SPEC_RECORD, SPEC_YAML, conversation

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


def test_sample_has_tokens_for_each_field_and_ids_of_special_tokens(jsonl):
    tokenizer = train("bytes")
    dataset = InstructionDataset(jsonl, tokenizer=tokenizer, jq_patterns=PATTERNS, special_tokens=SPECIAL)
    sample = dataset[-2]
    assert sample["special_tokens"] == {"bos_token": 0, "eos_token": 1}
    assert sample["role"]["value"] == "r"
    assert sample["role"]["tokens"].tolist() == tokenizer.encode("r").ids.tolist()
    assert [(turn["from"], turn["value"]) for turn in sample["conversations"]] == [
        ("human", "Привет"),
        ("gpt", "日本🎉 \n"),
    ]
    assert sample["conversations"][1]["tokens"].tolist() == tokenizer.encode("日本🎉 \n").ids.tolist()
    assert dataset[2] == {"special_tokens": {"bos_token": 0, "eos_token": 1}}
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert again[0]["role"]["value"] == SPEC_RECORD["role"]
    with pytest.raises(IndexError, match=r"a record in \[0, 3\), got 3"):
        dataset[3]


def test_special_tokens_may_be_a_list(jsonl):
    tokens = list(SPECIAL.values())
    dataset = InstructionDataset(jsonl, tokenizer=train("bytes"), jq_patterns=PATTERNS, special_tokens=tokens)
    assert dataset[0]["special_tokens"] == {"<s>": 0, "</s>": 1}


def test_dataset_checks_its_tokens_patterns_and_fields(jsonl):
    def open_with(patterns, special):
        return InstructionDataset(jsonl, tokenizer=train("bytes"), jq_patterns=patterns, special_tokens=special)

    with pytest.raises(TokenizerError, match="exactly one id"):
        open_with(PATTERNS, {"eod_token": "<eod>"})
    with pytest.raises(InputError, match="cannot be called 'special_tokens'"):
        open_with([".special_tokens"], {})
    with pytest.raises(RecordProblem, match="field 'id': expected a text or a list"):
        open_with([".id"], {})[0]
    with pytest.raises(InputError, match="cannot be read"):
        InstructionDataset("nosuch.jsonl", tokenizer=train("bytes"), jq_patterns=PATTERNS, special_tokens={})


def write_mmididx(prefix, sequences, code):
    """Write the format from its description, without the code under test."""
    lengths = np.array([len(sequence) for sequence in sequences], dtype="<i4")
    size = {1: 1, 4: 4, 8: 2}[code]
    pointers = np.concatenate(([0], np.cumsum(lengths.astype(np.int64) * size)))[:-1].astype("<i8")
    data = b"".join(sequence.astype({1: "<u1", 4: "<i4", 8: "<u2"}[code]).tobytes() for sequence in sequences)
    Path(f"{prefix}.bin").write_bytes(data)
    header = b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + bytes([code])
    counts = np.array([len(sequences), len(sequences) + 1], "<u8").tobytes()
    boundaries = np.arange(len(sequences) + 1, dtype="<i8")
    Path(f"{prefix}.idx").write_bytes(header + counts + lengths.tobytes() + pointers.tobytes() + boundaries.tobytes())


def write_dataset(folder, lengths):
    rng = np.random.default_rng(len(lengths))
    texts = [rng.integers(10, 60_000, length) for length in lengths]
    masks = [rng.integers(0, 2, length) for length in lengths]
    prefix = str(folder / "chat")
    write_mmididx(f"{prefix}_text_document", texts, 8)
    write_mmididx(f"{prefix}_loss_mask", masks, 1)
    return prefix, texts, masks


def test_packed_dataset_gives_every_conversation_once_with_its_mask(tmp_path):
    prefix, texts, masks = write_dataset(tmp_path, [5, 3, 8, 1, 7, 2, 4])
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
    with pytest.raises(IndexError, match=r"a block in \[0, 4\)"):
        dataset[4]


def test_packed_dataset_decodes_blocks_without_padding_and_is_a_table(tmp_path):
    prefix, texts, _ = write_dataset(tmp_path, [5, 3])
    dataset = PackedInstructionDataset(prefix, sequence_length=8, pad_id=3, packed=False)
    tokenizer = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
    assert dataset.decode(-1, tokenizer=tokenizer) == " ".join(map(str, texts[1].tolist()))
    with pytest.raises(IndexError, match="a block in"):
        dataset.decode(2, tokenizer=tokenizer)
    assert "<th>conversations</th><td>2</td>" in dataset._repr_html_()


def test_table_of_records_has_their_fields(jsonl):
    dataset = InstructionDataset(jsonl, tokenizer=train("bytes"), jq_patterns=PATTERNS, special_tokens=SPECIAL)
    assert "<th>records</th><td>3</td>" in dataset._repr_html_()


def test_packed_dataset_reads_the_plan_that_is_there(tmp_path):
    prefix, _, _ = write_dataset(tmp_path, [4, 4, 4, 4])
    write_mmididx(packing_prefix(prefix, 8), [np.array([0, 3]), np.array([2]), np.array([1])], 4)
    dataset = PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
    assert [dataset.plan.block(number).tolist() for number in range(3)] == [[0, 3], [2], [1]]
    assert dataset.plan.fill == pytest.approx(16 / 24)
    made = PackedInstructionDataset(prefix, sequence_length=9, pad_id=0).plan
    assert made.conversations.tolist() == lay_out_blocks([4] * 4, sequence_length=9).conversations.tolist()


def test_unpacked_dataset_has_one_conversation_per_block(tmp_path):
    prefix, texts, _ = write_dataset(tmp_path, [5, 3])
    dataset = PackedInstructionDataset(prefix, sequence_length=6, pad_id=1, packed=False)
    assert dataset[1].tokens.tolist() == [*texts[1].tolist(), 1, 1, 1]
    with pytest.raises(ValueError, match="at most 4 tokens, got one of 5"):
        PackedInstructionDataset(prefix, sequence_length=4, pad_id=1, packed=False)
    with pytest.raises(ValueError, match="expected 1 to 4 tokens"):
        PackedInstructionDataset(prefix, sequence_length=4, pad_id=1)


@pytest.mark.parametrize(
    ("blocks", "code"),
    [
        pytest.param([[0], [1]], 4, id="missing"),
        pytest.param([[0, 1], [1, 2]], 4, id="twice"),
        pytest.param([[0, 1], [3]], 4, id="no-such"),
        pytest.param([[0, -1], [2]], 4, id="negative"),
    ],
)
def test_plan_of_other_data_is_refused(tmp_path, blocks, code):
    prefix, _, _ = write_dataset(tmp_path, [2, 2, 2])
    write_mmididx(packing_prefix(prefix, 8), [np.array(block) for block in blocks], code)
    with pytest.raises(FormatError, match="expected each of 3 sequences once"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)


def test_plan_with_blocks_that_are_too_full_is_refused(tmp_path):
    prefix, _, _ = write_dataset(tmp_path, [5, 5])
    write_mmididx(packing_prefix(prefix, 8), [np.array([0, 1])], 4)
    with pytest.raises(FormatError, match="expected blocks of at most 8 tokens, got one of 10"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)


def test_masks_of_other_data_are_refused(tmp_path):
    prefix, texts, masks = write_dataset(tmp_path, [5, 3])
    write_mmididx(f"{prefix}_loss_mask", masks[::-1], 1)
    with pytest.raises(FormatError, match=r"expected the lengths of .*chat_text_document\.idx \(2 sequences\)"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
    write_mmididx(f"{prefix}_loss_mask", texts, 8)
    with pytest.raises(FormatError, match="expected uint8 masks, got uint16"):
        PackedInstructionDataset(prefix, sequence_length=8, pad_id=0)
