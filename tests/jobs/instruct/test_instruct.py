"""Instruction data: the one law, datasets and blocks, records of all shapes and bad ones, and other plans."""

import contextlib
import json
import os

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import dsindex
from dsindex.cli.main import main
from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import PackedInstructionDataset
from dsindex.datasets.provenance import read_source
from dsindex.engine import output as engine_output
from dsindex.errors import BadRecordError, InputError, OutputError, PlanError, RecordProblem
from dsindex.instruction.config import check_config, parse_config
from dsindex.instruction.encode import InstructionEncoder
from dsindex.instruction.records import parse_record
from dsindex.instruction.splits import split_by_hash
from dsindex.instruction.tokens import ChatTokenizer
from dsindex.jobs import instruct
from tests.jobs.instruct.instruct_jobs import CHATML, SPLIT_IN_PARTS, job, published
from tests.support.chat_tokenizers import train
from tests.support.conversations import BAD, CONVERSATIONS, SPEC, SPEC_RECORD, SPEC_YAML
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.killed import run_until_killed
from workflows.demo_text import demo_conversations

WAYS = [
    {"executor": "local", "shard_size": "64MiB", "workers": 1},
    {"executor": "local", "shard_size": "3KiB", "workers": 3},
    {"executor": "processes", "shard_size": "40KiB", "workers": 2},
]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, broken):
    """What every way of doing the same has to give."""
    folder = tmp_path_factory.mktemp("expected")
    config = job(folder / "chat", input=(str(broken),), shard_size="64MiB", workers=1)
    run_config(config, SPLIT_IN_PARTS)
    return published(folder)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_same_bytes_for_any_shard_size_and_executor(tmp_path, broken, expected, way):
    run_config(job(tmp_path / "chat", input=(str(broken),), **way), SPLIT_IN_PARTS)
    assert published(tmp_path) == expected
    assert len(expected) == 3 * (3 * 3 + 2)  # per split three datasets, provenance and quarantine


@pytest.mark.exhaustive
def test_same_bytes_through_a_chat_template_for_any_shard_size_and_executor(tmp_path, broken):
    """Whole conversations are rendered by blocks, parts of split ones a few at a time."""
    instruction = check_config({"chat_template": CHATML, "max_length": 120, "too_long": "split"}, source="test")
    for number, way in enumerate(WAYS):
        config = job(tmp_path / str(number) / "chat", input=(str(broken),), **way)
        report = run_config(config, instruction)
        assert sum(split.statistics.sequences - split.statistics.conversations for split in report.splits) > 10
    assert published(tmp_path / "0") == published(tmp_path / "1") == published(tmp_path / "2")


def test_same_bytes_after_publishing_was_cut_off(tmp_path, broken, expected, monkeypatch):
    """Tokens go last: where their .idx stands, the mask is whole. Blocks are made of what is published."""
    config = job(tmp_path / "chat", input=(str(broken),))
    publish, calls = engine_output._rename_all, []

    def fail_third(dataset, *others):
        calls.append(dataset.output.prefix)
        if len(calls) == 2:
            raise InputError("the storage went away")
        publish(dataset, *others)

    monkeypatch.setattr(engine_output, "_rename_all", fail_third)
    with pytest.raises(InputError, match="the storage went away"):
        run_config(config, SPLIT_IN_PARTS)
    assert [os.path.basename(prefix) for prefix in calls] == [
        "chat_test_loss_mask",
        "chat_test_text_document",
    ]
    assert not (tmp_path / "chat_test_text_document.idx").exists()
    monkeypatch.setattr(engine_output, "_rename_all", publish)
    run_config(config, SPLIT_IN_PARTS)
    assert published(tmp_path) == expected


def test_same_bytes_after_a_kill(tmp_path, broken, expected):
    """The command, killed once some shards are committed; the same command again."""
    out = tmp_path / "out"
    config = tmp_path / "chat.yaml"
    config.write_text(yaml.safe_dump({**SPEC, "max_length": 768, "too_long": "split"}))
    command = ["instruct", str(config), "--input", str(broken)]
    command += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(out / "chat")]
    command += ["--seq-length", "768", "--split", "8,1,1", "--on-bad-record", "quarantine"]
    command += ["--shard-size", "1KiB", "--executor", "local", "--workers", "1"]
    run_until_killed(command, num_shards=3)
    assert published(out) == {}
    assert main(command) == 0
    assert published(out) == expected


def test_datasets_are_what_the_encoder_gives(tmp_path):
    """Read with the package's own readers: tokens and masks by split, every sequence in one block, provenance."""
    report = run_config(job(tmp_path / "chat"), SPLIT_IN_PARTS)
    encoder = InstructionEncoder(SPLIT_IN_PARTS, ChatTokenizer.from_path(OWN.plain_tokenizer))
    encoded = []
    for line, text in enumerate(CONVERSATIONS.read_bytes().splitlines(), 1):
        with contextlib.suppress(RecordProblem):
            encoded.append((line, encoder.encode(parse_record(text))))
    for split in report.splits:
        name = split.prefix.rpartition("_")[2]
        own = [entry for entry in encoded if split_by_hash(entry[1].fingerprint, fractions=(8, 1, 1)) == name]
        texts, masks = (IndexedDataset(f"{split.prefix}_{what}") for what in ("text_document", "loss_mask"))
        assert (texts.dtype, masks.dtype) == (np.uint16, np.uint8)
        assert np.array_equal(texts.document_indices, masks.document_indices)
        assert np.array_equal(np.concatenate(list(texts)), np.concatenate([item.tokens for _, item in own]))
        assert np.array_equal(np.concatenate(list(masks)), np.concatenate([item.mask for _, item in own]))
        blocks = PackedInstructionDataset(split.prefix, sequence_length=768, pad_id=0)
        statistics = split.statistics
        # A first token is nobody's target, and the BOS is never trained on: nothing is lost between mask and loss mask.
        assert sum(int(block.loss_mask.sum()) for block in blocks) == statistics.learnt  # type: ignore[attr-defined]
        assert len(blocks) == split.packing.blocks  # type: ignore[union-attr]
        assert blocks.plan.num_padding == split.packing.padding  # type: ignore[union-attr]
        assert sorted(blocks.plan.conversations.tolist()) == list(range(statistics.sequences))
        last = len(own) - 1
        assert read_source(f"{split.prefix}_text_document.provenance.parquet", last).line == own[last][0]
    assert sum(split.statistics.conversations for split in report.splits) == report.counts.kept == len(encoded)


def test_command_takes_the_yaml_of_the_spec_as_it_is(tmp_path, capsys):
    tokenizer = train("bytes")
    (tmp_path / "tokenizer.json").write_text(tokenizer._json)
    (tmp_path / "spec.yaml").write_text(SPEC_YAML)
    (tmp_path / "spec.jsonl").write_text(json.dumps(SPEC_RECORD) + "\n")
    given = ["--input", str(tmp_path / "spec.jsonl"), "--tokenizer-model", str(tmp_path / "tokenizer.json")]
    command = ["instruct", str(tmp_path / "spec.yaml"), *given, "--output-prefix", str(tmp_path / "out" / "spec")]
    assert main([*command, "--executor", "local"]) == 0
    expected = InstructionEncoder(parse_config(SPEC_YAML), tokenizer).encode(SPEC_RECORD)
    assert IndexedDataset(f"{tmp_path}/out/spec_text_document")[0].tolist() == expected.tokens.tolist()
    assert IndexedDataset(f"{tmp_path}/out/spec_loss_mask")[0].tolist() == expected.mask.tolist()
    shown = capsys.readouterr().out
    assert "1 line = 1 kept + 0 quarantined + 0 blank" in shown
    assert f"1 conversation, 1 sequence, {len(expected.tokens)} tokens, {expected.mask.sum()} trainable" in shown
    assert main([*command, "--executor", "local"]) == 0
    assert "already complete: the same plan was carried out before, nothing was done" in capsys.readouterr().out
    for name in ("text_document", "loss_mask"):
        assert main(["verify", f"{tmp_path}/out/spec_{name}"]) == 0


@pytest.mark.parametrize("shape", ["messages", "sharegpt", "alpaca"])
def test_usual_shapes_give_the_same_tokens_through_a_chat_template(tmp_path, shape):
    """The job's section in the configuration, and the shapes of records."""
    records = list(demo_conversations(40))
    texts = [[turn["value"] for turn in record["conversations"][:2]] for record in records]
    shapes = {
        "messages": lambda a, b: {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]},
        "sharegpt": lambda a, b: {"conversations": [{"from": "human", "value": a}, {"from": "gpt", "value": b}]},
        "alpaca": lambda a, b: {"instruction": a, "input": "", "output": b},
    }
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(shapes[shape](*pair)) + "\n" for pair in texts))
    (tmp_path / "template.jinja").write_text(CHATML)
    described = {
        "chat_template_file": "template.jinja",
        "job": {"input": str(tmp_path / "in.jsonl"), "output-prefix": str(tmp_path / "out" / "chat"),
         "tokenizer_model": str(OWN.plain_tokenizer), "executor": "local"},
    }  # fmt: skip
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(described))
    assert main(["instruct", str(tmp_path / "chat.yaml")]) == 0
    dataset, masks = (IndexedDataset(f"{tmp_path}/out/chat_{name}") for name in ("text_document", "loss_mask"))
    tokenizer = ChatTokenizer.from_path(OWN.plain_tokenizer)
    for number, (question, answer) in enumerate(texts):
        text = f"USER: {question}\nASSISTANT: {answer}<|endoftext|>"
        assert dataset[number].tolist() == tokenizer.encode(text).ids.tolist()
        assert tokenizer.decode(dataset[number][masks[number] == 1].astype(np.uint32)).endswith("<|endoftext|>")


@pytest.mark.parametrize(("line", "kind"), BAD.items(), ids=BAD.values())
def test_first_bad_record_is_named_with_file_and_line(tmp_path, line, kind):
    good = CONVERSATIONS.read_bytes().splitlines()
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good[:5], line, *good[5:9], line]))
    config = job(tmp_path / "out" / "chat", input=(str(tmp_path / "a.jsonl"),), on_bad_record="fail", shard_size="700B")
    with pytest.raises(BadRecordError, match=rf"a\.jsonl, line 6: .* \({kind}\)"):
        run_config(config, SPLIT_IN_PARTS)


def test_bad_records_are_counted_by_kind(tmp_path, broken):
    config = job(tmp_path / "chat", input=(str(broken),), split=None)
    report = run_config(config, SPLIT_IN_PARTS)
    content = json.loads((tmp_path / "chat_text_document.manifest.json").read_bytes())["content"]
    assert content["bad_records"] == report.bad_records
    assert report.bad_records.keys() >= set(BAD.values())
    assert sum(report.bad_records.values()) == report.counts.quarantined == content["account"]["quarantined"]
    assert report.counts.lines == 120 + len(BAD) + 1
    assert (tmp_path / "chat_text_document.quarantine.jsonl.zst").exists()
    assert main(["verify", str(tmp_path / "chat_text_document")]) == 0
    with pytest.raises(InputError, match="more than the 2 of --max-bad-records"):
        run_config(job(tmp_path / "other" / "chat", input=(str(broken),), max_bad_records="2"), SPLIT_IN_PARTS)


def test_another_plan_is_refused_and_fresh_replaces_its_packing(tmp_path):
    config = job(tmp_path / "chat", split=None)
    run_config(config, SPLIT_IN_PARTS)
    shorter = msgspec.structs.replace(SPLIT_IN_PARTS, max_length=512)
    with pytest.raises(PlanError, match="max_length was 768 and is 512"):
        run_config(config, shorter)
    run_config(config.replaced(seq_length=512, replace=True), shorter)
    names = {path.name for path in tmp_path.iterdir()}
    assert "chat_packing_512.idx" in names
    assert not any("packing_768" in name for name in names)


def test_packs_of_another_length_are_made_of_the_tokens_that_are_there(tmp_path, monkeypatch):
    """Also after a crash between their files; somebody else's file is never replaced."""
    instruction = check_config({**SPEC, "max_length": 768, "too_long": "truncate"}, source="test")
    config = job(tmp_path / "chat", split=None, on_bad_record="fail")
    learnt = run_config(config, instruction).splits[0].statistics.learnt
    before = published(tmp_path)
    monkeypatch.setattr(instruct, "encode_shard", None)
    padded = config.replaced(seq_length=1024, pad_to_multiple=16)
    foreign = tmp_path / "chat_packing_1024_pad16.idx"
    foreign.write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"_pad16\.idx: expected packs that dsindex wrote, got a file of which no"):
        run_config(padded, instruction)
    foreign.unlink()
    report = run_config(padded, instruction)
    assert report.lines()[0] == "already complete: the same plan was carried out before, only packs were made"
    assert {name: published(tmp_path)[name] for name in before} == before
    dataset = dsindex.open(tmp_path / "chat", sequence_length=1024, pad_to_multiple=16)
    lengths = IndexedDataset(tmp_path / "chat_text_document").sequence_lengths
    assert len(dataset) == report.splits[0].packing.blocks
    assert sum(int(block.loss_mask.sum()) for block in dataset) == learnt
    for number, block in enumerate(dataset):
        own = lengths[dataset.plan.block(number)]
        assert np.diff(block.cu_seqlens_unpadded)[: len(own)].tolist() == own.tolist()
        assert np.diff(block.cu_seqlens)[: len(own)].tolist() == (-(-own // 16) * 16).tolist()
        assert block.cu_seqlens[-1] == 1024
        assert len(block.cu_seqlens) == len(block.cu_seqlens_unpadded)


LONG = [{"role": "user", "content": "a " * 130}, {"role": "assistant", "content": "b " * 130}]
SHORT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
LONGER = {
    "refuse": ("too-long 1", (1, 1), 0, None),
    "drop": (None, (2, 2), 0, 1),
    "truncate": (None, (2, 2), 1, None),
    "split-turns": (None, (2, 3), 0, None),
}
"""What is said, the conversations and sequences, whether tokens are cut off, and what is left out of the packs."""


@pytest.mark.parametrize("longer", LONGER)
def test_conversations_longer_than_a_pack_are_counted(tmp_path, cli, longer):
    said, counts, is_cut, dropped = LONGER[longer]
    turns = [*LONG, *LONG]
    records = [{"messages": [*SHORT, *turns]}, {"messages": SHORT}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump({"chat_template": CHATML}))
    command = ["instruct", str(tmp_path / "chat.yaml"), "--input", str(tmp_path / "in.jsonl"), "--executor", "local"]
    command += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / "chat")]
    command += ["--seq-length", "512", "--on-bad-record", "quarantine", "--longer-than-pack", longer]
    shown = cli(command).out
    content = json.loads((tmp_path / "chat_text_document.manifest.json").read_bytes())["content"]
    packing = json.loads((tmp_path / "chat_packing_512.manifest.json").read_bytes())["content"]["packing"]
    statistics = content["statistics"]
    assert (statistics["conversations"], statistics["sequences"]) == counts
    assert (statistics["cut"] > 0) == bool(is_cut)
    assert statistics.get("shortened", 0) == (longer in {"truncate", "split-turns"})
    assert packing.get("dropped") == dropped
    assert said is None or f"quarantined: {said}" in shown
    if dropped:
        assert "1 longer sequence with" in shown
        assert len(dsindex.open(tmp_path / "chat")) == 1
        assert "only packs were made" in cli([word.replace("512", "1024") for word in command]).out
        assert (
            json.loads((tmp_path / "chat_packing_1024.manifest.json").read_bytes())["content"]["packing"]["dropped"]
            == 0
        )


def test_fresh_leaves_datasets_of_like_names(tmp_path):
    for name in ("chat", "chat_packing_v2", "chat_packing_7"):
        run_config(job(tmp_path / name, split=None), SPLIT_IN_PARTS)
    before = published(tmp_path)
    config = job(tmp_path / "chat", split=None, seq_length=1024, replace=True)
    run_config(config, msgspec.structs.replace(SPLIT_IN_PARTS, max_length=512))
    after = published(tmp_path)
    gone = {name for name in before if name not in after}
    assert gone == {name for name in before if name.startswith("chat_packing_768.")}
    others = [name for name in before if name.startswith(("chat_packing_v2", "chat_packing_7_"))]
    assert [after[name] for name in others] == [before[name] for name in others]


@pytest.mark.parametrize(("text", "options", "code", "message"), [
    ("message_construction: [role]", ["--seq-length", "1"], 2, "--seq-length: expected at least 2, got 1"),
    ("message_construction: [role]", ["--split", "0,0,0"], 2, "expected the shares of train, valid and test"),
    ("{message_construction: [role], max_length: 99}", ["--seq-length", "64"], 2, "must fit into a block"),
    ("{message_construction: [role]}", ["--seq-length", "64", "--pad-to-multiple", "12"], 2, "such as 60, got 64"),
    ("{message_construction: [role], too_long: split, max_length: 9}",
     ["--seq-length", "64", "--longer-than-pack", "truncate"], 2, "got both; leave out one"),
    ("{message_construction: [role], job: {inptu: x}}", [], 2, "there is no option 'inptu'"),
    ("{message_construction: [role], packing: 5}", [], 1, "packing: no such option"),
    ("{message_construction: [role], special_tokens: {x: a b c}}", [], 1, "expected exactly one id of its own"),
    ("message_construction: [role", [], 1, "expected YAML"),
])  # fmt: skip
def test_wrong_options_are_said_in_one_sentence(tmp_path, capsys, text, options, code, message):
    (tmp_path / "chat.yaml").write_text(text)
    given = ["--input", str(CONVERSATIONS), "--tokenizer-model", str(OWN.plain_tokenizer)]
    command = ["instruct", str(tmp_path / "chat.yaml"), *given, "--output-prefix", str(tmp_path / "out" / "x")]
    assert main([*command, *options, "--executor", "local"]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Conversations with every kind of bad record among them."""
    path = tmp_path_factory.mktemp("inputs") / "broken.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:120]
    path.write_bytes(b"\n".join([*lines[:50], *BAD, b"", *lines[50:]]) + b"\n")
    return path


def test_template_that_cannot_be_compiled_is_said_in_one_sentence(tmp_path, cli):
    template = "{% if a %}" + "{% elif a %}b" * 6000 + "{% endif %}"
    (tmp_path / "chat.json").write_text(json.dumps({"chat_template": template}))
    given = ["--input", str(CONVERSATIONS), "--tokenizer-model", str(OWN.plain_tokenizer)]
    said = cli(["instruct", str(tmp_path / "chat.json"), *given, "--output-prefix", str(tmp_path / "out/chat")], 1).err
    assert said.startswith("dsindex instruct: chat template: too long, or nested too deep, for Python's compiler ")
    assert not (tmp_path / "out").exists()


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


def test_tables_give_the_tokens_of_json_and_what_is_not_written_is_said(tmp_path, cli):
    """Arrow fills the fields of structs that other rows have; datasets' type Json is JSON in texts."""
    (tmp_path / "json.jsonl").write_text("".join(json.dumps(record) + "\n" for record in CALLS))
    pq.write_table(pa.Table.from_pylist(CALLS), tmp_path / "nulls.parquet")
    columns = {key: pa.array([json.dumps(record[key]) for record in CALLS], pa.json_()) for key in CALLS[0]}
    pq.write_table(pa.table(columns), tmp_path / "texts.parquet")
    (tmp_path / "chat.yaml").write_text("chat_template: qwen2.5\ncontrol_tokens: allow\n")
    found = set()
    for name in ("json.jsonl", "nulls.parquet", "texts.parquet"):
        words = ["instruct", str(tmp_path / "chat.yaml"), "--input", str(tmp_path / name)]
        words += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / name)]
        said = cli(words).out
        assert "  note: reasoning_content in 2 of 2 conversations: the template does not write it" in said
        assert "reasoning" not in cli([*words[:-1], f"{words[-1]}-dropped", "--reasoning", "drop"]).out
        found.add((tmp_path / f"{name}_text_document.bin").read_bytes())
    assert len(found) == 1
    refused = cli([*words[:-1], f"{words[-1]}-refused", "--unwritten", "refuse"], 1).err
    assert "the template does not write reasoning_content; see `unwritten` (not-written)" in refused
