"""Instruction data: the one law, datasets and blocks, records of all shapes and bad ones, and other plans."""

import contextlib
import json
import re
import shutil

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsindex
from dsindex.chat.config import check_config
from dsindex.chat.encode import InstructionEncoder
from dsindex.chat.statistics import split_by_hash
from dsindex.chat.tokens import ChatTokenizer
from dsindex.cli.render import describe
from dsindex.commands import instruct
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import PackedInstructionDataset
from dsindex.errors import OutputError, PlanError, RecordProblem, UsageError
from dsindex.formats.manifest import read_manifest
from dsindex.formats.provenance import read_rows
from dsindex.text.fields import parse_record
from tests.commands.instruct.instruct_jobs import CHATML, SPLIT_IN_PARTS, job
from tests.support.conversations import BAD, CONVERSATIONS, SPEC
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.published import published

TOKENIZER = f"--tokenizer-model {OWN.plain_tokenizer}"
WITH_VARIABLE = {"chat_template": "{{ greeting }}" + CHATML, "max_length": 150, "too_long": "split"}
"""A template that writes a variable of the record."""
TEMPLATED = check_config(WITH_VARIABLE, source="test")
WAYS = [
    ("construction", {"shard_size": "3KiB", "workers": 3}),
    ("template", {"shard_size": "9KiB", "workers": 1}),
    ("template", {"executor": "processes", "shard_size": "40KiB"}),
    pytest.param("template", {"executor": "ray", "shard_size": "20KiB"}, marks=pytest.mark.ray),
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Name → input, configuration, and what every way of encoding it has to give.

    One input has every kind of bad record among its conversations, the other weights, of which 2 is refused, parts and
    variables of their own.
    """
    chat_lines = CONVERSATIONS.read_bytes().splitlines()
    broken, unusual = (tmp_path_factory.mktemp("inputs") / f"{name}.jsonl" for name in ("broken", "unusual"))
    broken.write_bytes(b"\n".join([*chat_lines[:50], *BAD, b"", *chat_lines[50:120]]) + b"\n")
    lines = []
    for number, line in enumerate(chat_lines[:90]):
        record = json.loads(line)
        record["conversations"][1]["weight"] = number % 3
        record["conversations"][0]["value"] = [{"type": "text", "text": record["conversations"][0]["value"]}]
        lines.append(json.dumps({**record, "chat_template_kwargs": {"greeting": str(number % 5)}}).encode())
    unusual.write_bytes(b"\n".join(lines))
    expected_by_name = {}
    for name, source, instruction in (("construction", broken, SPLIT_IN_PARTS), ("template", unusual, TEMPLATED)):
        folder = tmp_path_factory.mktemp(name)
        report = run_config(job(folder / "chat", input=(str(source),), shard_size="64MiB", workers=1), instruction)
        assert any(split.statistics.sequences > split.statistics.conversations for split in report.splits)
        expected_by_name[name] = source, instruction, published(folder)
    assert report.bad_kinds["bad-field"] == 30
    return expected_by_name


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "way"), WAYS, ids=str, indirect=["way"])
def test_same_bytes_for_any_shard_size_and_executor(tmp_path, expected, name, way):
    source, instruction, files = expected[name]
    run_config(job(tmp_path / "chat", input=(str(source),), **way), instruction)
    assert published(tmp_path) == files
    assert len(files) == 3 * (3 * 3 + 2)  # per split three datasets, provenance and quarantine


def test_datasets_are_what_the_encoder_gives(tmp_path):
    """Read with the package's own readers: tokens and masks by split, every sequence in one block, provenance."""
    report = run_config(job(tmp_path / "chat", shard_size=None), SPLIT_IN_PARTS)
    encoder = InstructionEncoder(SPLIT_IN_PARTS, ChatTokenizer.from_path(OWN.plain_tokenizer))
    encoded = []
    for line, text in enumerate(CONVERSATIONS.read_bytes().splitlines(), 1):
        with contextlib.suppress(RecordProblem):
            encoded.append((line, encoder.encode(parse_record(text))))
    for split in report.splits:
        name = split.prefix.rpartition("_")[2]
        entries = [entry for entry in encoded if split_by_hash(entry[1].fingerprint, fractions=(8, 1, 1)) == name]
        texts, masks = (IndexedDataset(f"{split.prefix}_{suffix}") for suffix in ("text_document", "loss_mask"))
        assert (texts.dtype, masks.dtype) == (np.uint16, np.uint8)
        assert np.array_equal(texts.document_indices, masks.document_indices)
        assert np.array_equal(np.concatenate(list(texts)), np.concatenate([item.tokens for _, item in entries]))
        assert np.array_equal(np.concatenate(list(masks)), np.concatenate([item.mask for _, item in entries]))
        blocks = PackedInstructionDataset(split.prefix, sequence_length=768, pad_id=0)
        statistics = split.statistics
        # A first token is nobody's target, and the BOS is never trained on: nothing is lost between mask and loss mask.
        assert sum(int(block.loss_mask.sum()) for block in blocks) == statistics.trainable  # type: ignore[attr-defined]
        assert len(blocks) == split.packing.blocks  # type: ignore[union-attr]
        assert blocks.plan.num_padding == split.packing.padding  # type: ignore[union-attr]
        assert sorted(blocks.plan.conversations.tolist()) == list(range(statistics.sequences))
        last = len(entries) - 1
        assert read_rows(f"{split.prefix}_text_document.provenance.parquet", last, last + 1)[2] == entries[last][0]
    assert sum(split.statistics.conversations for split in report.splits) == report.counts.kept == len(encoded)


def test_another_plan_is_refused_and_replacing_removes_the_packs_of_earlier_tokens(tmp_path):
    """Not the datasets of like names."""
    options = {"split": None, "shard_size": None, "workers": 1}
    for name in ("chat", "chat_packing_v2", "chat_packing_7"):
        run_config(job(tmp_path / name, **options), SPLIT_IN_PARTS)
    before, shorter = published(tmp_path), msgspec.structs.replace(SPLIT_IN_PARTS, max_length=512)
    with pytest.raises(PlanError, match="max_length was 768 and is 512"):
        run_config(job(tmp_path / "chat", **options), shorter)
    run_config(job(tmp_path / "chat", **options, seq_length=1024, replace=True), shorter)
    after = published(tmp_path)
    assert before.keys() - after.keys() == {name for name in before if name.startswith("chat_packing_768.")}
    other_names = [name for name in before if name.startswith(("chat_packing_v2", "chat_packing_7_"))]
    assert [after[name] for name in other_names] == [before[name] for name in other_names]


def test_packs_of_another_length_are_made_of_the_tokens_that_are_there(tmp_path, monkeypatch):
    """Also after a crash between their files; somebody else's file is never replaced."""
    instruction = check_config({**SPEC, "max_length": 768, "too_long": "truncate"}, source="test")
    config = job(tmp_path / "chat", split=None, on_bad_record="fail", shard_size=None)
    trainable = run_config(config, instruction).splits[0].statistics.trainable
    before = published(tmp_path)
    monkeypatch.setattr(instruct, "encode_shard", None)
    padded = config.copy_with(seq_length=1024, pad_to_multiple=16)
    foreign = tmp_path / "chat_packing_1024_pad16.idx"
    foreign.write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"_pad16\.idx: no manifest says that dsindex made these packs"):
        run_config(padded, instruction)
    foreign.unlink()
    report = run_config(padded, instruction)
    assert next(describe(report)) == "already complete: only packs were made"
    assert {name: published(tmp_path)[name] for name in before} == before
    dataset = dsindex.open(tmp_path / "chat", sequence_length=1024, pad_to_multiple=16)
    lengths = IndexedDataset(tmp_path / "chat_text_document").sequence_lengths
    assert len(dataset) == report.splits[0].packing.blocks
    assert sum(int(block.loss_mask.sum()) for block in dataset) == trainable
    for number, block in enumerate(dataset):
        block_lengths = lengths[dataset.plan.block(number)]
        assert np.diff(block.cu_seqlens_unpadded)[: len(block_lengths)].tolist() == block_lengths.tolist()
        assert np.diff(block.cu_seqlens)[: len(block_lengths)].tolist() == (-(-block_lengths // 16) * 16).tolist()


LONG = [{"role": "user", "content": "a " * 130}, {"role": "assistant", "content": "b " * 130}]
SHORT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(("longer", "message", "counts", "is_cut", "dropped"), [
    ("refuse", "1 × .* 512;", (1, 1), False, None), ("drop", None, (2, 2), False, 1),
    ("truncate", None, (2, 2), True, None), ("split-turns", None, (2, 3), False, None),
])  # fmt: skip
def test_conversations_longer_than_a_pack_are_counted(in_folder, cli, longer, message, counts, is_cut, dropped):
    """Conversations and sequences, whether tokens are cut off, and what is left out of the packs."""
    records = [{"messages": [*SHORT, *LONG, *LONG]}, {"messages": SHORT}]
    (in_folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (in_folder / "chat.yaml").write_text(json.dumps({"chat_template": CHATML}))
    options = f"--seq-length 512 --on-bad-record quarantine --longer-than-pack {longer}"
    output = cli(f"instruct chat.yaml --input in.jsonl {TOKENIZER} --output-prefix chat {options}").out
    statistics = json.loads((in_folder / "chat_text_document.manifest.json").read_bytes())["content"]["statistics"]
    packing = json.loads((in_folder / "chat_packing_512.manifest.json").read_bytes())["content"]["packing"]
    assert (statistics["conversations"], statistics["sequences"]) == counts
    assert (statistics["cut"] > 0) == is_cut
    assert statistics["shortened"] == (longer in {"truncate", "split-turns"})
    assert packing.get("dropped") == dropped
    assert message is None or re.search(message, output), output
    assert ("1 longer sequence with" in output) == (dropped == 1)


CALLS = [
    {"messages": [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "reasoning_content": "Look.", "tool_calls": [
            {"type": "function", "function": {"name": name, "arguments": arguments}}]},
        {"role": "tool", "name": name, "content": "5"},
        {"role": "assistant", "content": "It is 5."},
    ], "tools": [{"type": "function", "function": {"name": name, "parameters": {"properties": {
        key: {"type": "number"} for key in arguments}}}}]}
    for question, name, arguments in (("Weather?", "weather", {"city": "Oslo"}), ("2 + 3?", "add", {"a": 2, "b": 3}))
]  # fmt: skip


def test_tables_give_the_tokens_of_json_and_what_is_not_written_is_said(in_folder, cli):
    """Arrow fills the fields of structs that other rows have; datasets' type Json is JSON in texts."""
    (in_folder / "json.jsonl").write_text("".join(json.dumps(record) + "\n" for record in CALLS))
    pq.write_table(pa.Table.from_pylist(CALLS), "nulls.parquet")
    columns = {key: pa.array([json.dumps(record[key]) for record in CALLS], pa.json_()) for key in CALLS[0]}
    pq.write_table(pa.table(columns), "texts.parquet")
    (in_folder / "chat.yaml").write_text("chat_template: qwen2.5\ncontrol_tokens: allow\n")
    contents = set()
    for name in ("json.jsonl", "nulls.parquet", "texts.parquet"):
        words = f"instruct chat.yaml --input {name} {TOKENIZER} --output-prefix {name}"
        output = cli(words).out
        assert "  note: reasoning_content in 2 of 2 conversations: the template does not use it" in output
        contents.add((in_folder / f"{name}_text_document.bin").read_bytes())
    assert len(contents) == 1
    assert "reasoning" not in cli(f"{words}-dropped --reasoning drop").out
    error = cli(f"{words}-refused --unwritten refuse", 1).err
    message = r"texts\.parquet, row 1: reasoning_content: the template does not use it; see `unwritten` \(not-written\)"
    assert re.search(message, error), error


def test_show_prints_the_records_that_a_build_would_train_on_and_writes_nothing(tmp_path, cli):
    """The tokenizer's own template is used without CONFIG, and brackets hold exactly the text with mask 1."""
    shutil.copytree(OWN.plain_tokenizer, tmp_path / "model")
    settings = tmp_path / "model" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": CHATML}))
    chats = [{"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "It is\n5."}]}]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in [*chats, {"x": 1}, *chats]))
    words = ["instruct", "--input", str(tmp_path / "chats.jsonl"), "--tokenizer-model", str(tmp_path / "model")]
    before = sorted(tmp_path.rglob("*"))
    output = cli([*words, "--show", "2"]).out
    assert "  no CONFIG: the tokenizer's own chat template is used\n" in output
    assert "\n    USER: 2 + 3?\n    ASSISTANT:[[ It is⏎]]\n    [[5.<|endoftext|>]]\n" in output
    assert "chats.jsonl, line 2: bad record\n    no conversation" in output
    assert "line 3" not in output
    assert "chats.jsonl, line 3: " in cli([*words, "--dry-run"]).out
    with pytest.raises(UsageError, match="there is no option 'show'"):
        dsindex.instruct(input=str(tmp_path / "chats.jsonl"), tokenizer=str(tmp_path / "model"), show=2)  # type: ignore[call-arg]
    assert sorted(tmp_path.rglob("*")) == before
    flags = ["--output-prefix", str(tmp_path / "out"), "--on-bad-record", "quarantine"]
    assert "note: no CONFIG: the tokenizer's own chat template is used" in cli([*words, *flags]).err
    tokens, mask = (IndexedDataset(str(tmp_path / f"out_{name}"))[0] for name in ("text_document", "loss_mask"))
    assert f"line 1: {len(tokens)} tokens, {mask.sum()} trained on, " in output


def test_packs_of_the_same_tokens_name_the_inputs_of_the_last_build(in_folder, cli):
    """A blank line changes the input, but no token."""
    (in_folder / "chat.yaml").write_text("chat_template: chatml\ncontrol_tokens: allow\n")
    lines = CONVERSATIONS.read_bytes().splitlines(keepends=True)[:9]
    options = f"{TOKENIZER} --seq-length 999 --longer-than-pack drop --replace"
    for content in (b"".join(lines), b"".join([*lines, b"\n"])):
        (in_folder / "chats.jsonl").write_bytes(content)
        cli(f"instruct chat.yaml --input chats.jsonl {options} --output-prefix x")
    tokens, packs = (read_manifest(f"x_{name}") for name in ("text_document", "packing_999"))
    assert packs.content.inputs == tokens.content.inputs
