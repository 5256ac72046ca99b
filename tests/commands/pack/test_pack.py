"""`dsindex pack`: its bytes, patterns, refusals, resuming and Modalities' own configuration."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import dsindex
from dsindex.commands.pack import choose_token_bytes
from dsindex.datasets.documents import permute
from dsindex.errors import OutputError, TokenizerError
from dsindex.formats.pbin import PBIN_VERSIONS
from dsindex.formats.provenance import count_rows, provenance_path, read_rows
from dsindex.options.pack import PackConfig
from dsindex.store.read import digest_file
from dsindex.text.tokenizer import load_tokenizer
from tests.support.golden import MODALITIES, OWN
from tests.support.jobs import config_of, run_config
from tests.support.pbin_files import VERSION_NAMES, pbin_bytes, write_pbin
from tests.support.published import published


def words(folder, size, *, added=()):
    """A tokenizer with `size` words, the first of which are those of the golden text, and <eod> as its last one."""
    entries = dict.fromkeys(["[UNK]", *" ".join(golden_texts()).split(), *(f"<{number}>" for number in range(size))])
    vocabulary = [*list(entries)[: size - 1], "<eod>"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eod>"])
    tokenizer.add_tokens(list(added))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eod>"}))
    return str(folder)


def packed_by_hand(texts, tokenizer, *, version, token_bytes):
    """What must come out, told as plainly as possible."""
    library = tokenizers.Tokenizer.from_file(os.path.join(tokenizer, "tokenizer.json"))
    eod = load_tokenizer(tokenizer).eod_id
    documents = [library.encode(text).ids for text in texts]
    closed = [ids if ids[-1] == eod else [*ids, eod] for ids in documents if ids]
    return pbin_bytes(closed, version=version, token_bytes=token_bytes)


def golden_texts():
    return [json.loads(line)["text"] for line in OWN.docs.read_text("utf-8").split("\n") if line]


# The command line.


TEXT = ("pack", "--input", str(OWN.docs), "--tokenizer-model", str(OWN.plain_tokenizer))


WAYS = [
    {"executor": "local", "shard_size": "1KiB", "engine": "gigatoken"},
    {"executor": "local", "shard_size": "64KiB", "engine": "tokenizers"},
    {"executor": "local", "shard_size": "64MiB", "engine": "gigatoken", "jq_pattern": '.["text"]'},
    {"executor": "processes", "shard_size": "64KiB", "engine": "tokenizers", "jq_pattern": ".text | ."},
    pytest.param({"executor": "ray", "shard_size": "64KiB", "jq_pattern": "[.text] | first"}, marks=pytest.mark.ray),
]


@pytest.mark.quick(3)
@pytest.mark.parametrize("way", WAYS, ids=str, indirect=True)
def test_pack_equals_modalities(way, tmp_path):
    options = {"tokenizer_model": str(MODALITIES / "gpt2"), "eod_token": "<|endoftext|>"}
    options["output"] = str(tmp_path / "x.pbin")
    run_config(config_of(PackConfig, MODALITIES / "nonempty.jsonl", **options, **way))
    assert (tmp_path / "x.pbin").read_bytes() == (MODALITIES / "nonempty.pbin").read_bytes()


@pytest.mark.quick(3)
@pytest.mark.parametrize("version", VERSION_NAMES)
@pytest.mark.parametrize(("num_words", "token_bytes"), [(256, 1), (257, 2), (70_000, 4)])
def test_every_era_and_token_size_is_what_is_packed_by_hand(version, num_words, token_bytes, tmp_path, make_pack):
    tokenizer = words(tmp_path / "words", num_words)
    report = run_config(make_pack(tokenizer_model=tokenizer, pbin_era=version, shard_size="30KiB"))
    size = 4 if version == "spec" else token_bytes
    packed = packed_by_hand(golden_texts(), tokenizer, version=version, token_bytes=size)
    [dataset] = report.datasets
    assert Path(dataset.prefix).read_bytes() == packed
    assert dataset.token_dtype == {1: "uint8", 2: "uint16", 4: "uint32"}[size]
    assert dataset.num_documents + report.counts.empty_documents == len(golden_texts())
    assert dataset.files["pbin"].digest == digest_file(dataset.prefix)


@pytest.mark.parametrize("order", [{}, {"shuffle_documents": 5}], ids=str)
def test_every_file_is_the_same_for_any_cut(order, make_pack, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(OWN.docs.read_bytes() + b'\n{"text": 1}\n' + OWN.docs.read_bytes())
    outputs = []
    for size in ("3KiB", "31KiB", "64MiB"):
        out = tmp_path / size
        inputs = (str(tmp_path / "in.jsonl"), str(OWN.docs))
        options = {"output": str(out / "x.pbin"), "shard_size": size, "on_bad_record": "quarantine"}
        run_config(make_pack(input=inputs, **options, **order))
        outputs.append(published(out))
    names = {f"x.{suffix}" for suffix in ("pbin", "manifest.json", "provenance.parquet", "quarantine.jsonl.zst")}
    assert outputs[0].keys() == names
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("version", ["2024-01-30", "current"])
def test_shuffled_documents_are_those_of_pack_and_then_convert(version, make_pack, tmp_path):
    packed, shuffled = tmp_path / "out" / "packed.pbin", tmp_path / "out" / "shuffled.pbin"
    for path, order in ((packed, {}), (shuffled, {"shuffle_documents": 2**63 - 1})):
        run_config(make_pack(input=(str(OWN.docs), str(OWN.docs)), output=str(path), pbin_era=version, **order))
    options = {"shuffle_documents": 2**63 - 1, "pbin_era": version}
    dsindex.convert(packed, tmp_path / "converted.pbin", **options)
    assert shuffled.read_bytes() == (tmp_path / "converted.pbin").read_bytes() != packed.read_bytes()
    count = count_rows(provenance_path(str(packed.with_suffix(""))))
    rows = [read_rows(provenance_path(str(path.with_suffix(""))), 0, count) for path in (packed, shuffled)]
    order = permute(np.arange(count), count, 2**63 - 1)
    assert all(np.array_equal(column[order], shuffled_column) for column, shuffled_column in zip(*rows, strict=True))
    with pytest.raises(OutputError, match=r"packed\.manifest\.json: this is another dataset with the same name"):
        dsindex.convert(packed, tmp_path / "out" / "packed", shuffle_documents=1)
    assert len(os.listdir(tmp_path / "out")) == 6 + 2  # and the files of progress


def test_added_token_that_does_not_fit_is_refused_by_name(make_pack, tmp_path):
    tokenizer = words(tmp_path / "words", 256, added=["<new>"])
    with pytest.raises(TokenizerError, match=r"the id 256 of '<new>' does not fit 1 bytes.*256 entries"):
        run_config(make_pack(tokenizer_model=tokenizer))
    assert not (tmp_path / "out").exists()
    run_config(make_pack(tokenizer_model=tokenizer, pbin_era="spec"))
    choose_token_bytes(load_tokenizer(words(tmp_path / "fits", 255, added=["<new>"])), PBIN_VERSIONS["current"])


def test_command_packs_and_merges(in_folder, cli):
    words = [*TEXT, "--output", "one.pbin", "--executor", "local"]
    output = cli(words).out
    assert f"one.pbin: {len(golden_texts()) - 2} documents" in output
    assert "2 texts without tokens\n" in output
    write_pbin(in_folder / "two.pbin", [[7, 8]], version="spec", token_bytes=4)
    merge = ["pack", "--merge", "one.pbin", "two.pbin", "--output", "both.pbin"]
    assert "files of different vocabularies" in cli(merge, 1).err
    write_pbin(in_folder / "two.pbin", [[7, 8]], version="2024-01-30", token_bytes=2)
    cli(merge)
    texts = packed_by_hand(golden_texts(), str(OWN.plain_tokenizer), version="current", token_bytes=2)
    tokens = np.frombuffer(texts, "<u2", int.from_bytes(texts[:8], "little") // 2, 12)
    content = (in_folder / "both.pbin").read_bytes()
    assert content[12 : 12 + tokens.nbytes + 4] == tokens.tobytes() + bytes([7, 0, 8, 0])


# What is done twice, cut off, or asked for differently.


def test_files_of_others_beside_the_output_stay(make_pack, tmp_path):
    (tmp_path / "out").mkdir()
    for suffix in ("bin", "idx"):
        (tmp_path / "out" / f"docs.{suffix}").write_bytes(b"an index of lines, or Megatron's")
    run_config(make_pack())
    assert (tmp_path / "out" / "docs.idx").read_bytes() == b"an index of lines, or Megatron's"
    assert (tmp_path / "out" / "docs.bin").exists()
