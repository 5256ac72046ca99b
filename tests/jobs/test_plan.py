"""Plans: shards, sizes, identity, the sample before a build, and what `dsindex plan` says."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dsindex.engine.identity import Plan, describe_inputs, describe_settings
from hypothesis import given
from hypothesis import strategies as st

from dsindex.engine.input_paths import find_paths
from dsindex.engine.inputs import (
    MAX_SHARDS,
    InputFile,
    choose_shard_size,
    choose_shard_sizes,
    look_at_inputs,
    plan_shards,
)
from dsindex.engine.sample import Piece, audited_pieces, encode_piece
from dsindex.errors import PlanError
from dsindex.text.encoders import make_encoder
from dsindex.text.engines import choose_engine
from dsindex.text.tokenizer import load_tokenizer
from dsindex.tools import estimate
from dsindex.tools.estimate import estimate_build
from tests.support.golden import OWN
from tests.support.jobs import run_config


def file_of(name, size=10, version="1"):
    return InputFile(path=name, absolute_path=f"/{name}", size_bytes=size, version=version)


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=8), shard_size=st.integers(1, 120))
def test_plan_shards_cuts_every_input_once_in_order(sizes, shard_size):
    tasks = list(plan_shards([file_of(str(n), size) for n, size in enumerate(sizes)], shard_size))
    assert [task.shard for task in tasks] == list(range(len(tasks)))
    for number, size in enumerate(sizes):
        own = [task for task in tasks if task.input == number]
        assert [task.begin for task in own] == list(range(0, size, shard_size))
        assert [task.end for task in own] == [*(task.begin for task in own[1:]), size]


@pytest.mark.parametrize("total", [1, 10**9, 10**13, 10**15])
def test_choose_shard_size_keeps_builds_below_a_hundred_thousand_shards(total):
    size = choose_shard_size(total, 64 << 20)
    assert size >= 64 << 20
    assert -(-total // size) <= MAX_SHARDS


def test_choose_shard_size_refuses_very_many_small_shards():
    assert choose_shard_size(64 * 10_000, 64) == 64
    assert choose_shard_size(10**9, 64 << 10) == 64 << 10
    with pytest.raises(PlanError, match=r"64KiB or more for 10\.0 MB of input, got 64 bytes, .* 156,250 shards"):
        choose_shard_size(10**7, 64)


MIB = 1 << 20


@pytest.mark.parametrize(("megabytes", "sizes"), [
    ([1], [2]), ([41], [2]), ([65], [4]), ([1024], [32]), ([4096], [64]), ([41] * 3, [2, 4, 4]),
    ([1, 4096, 1], [2, 64, 64]), ([1, 7_199_999], [2, 72]),
], ids=str)  # fmt: skip
def test_small_jobs_get_small_shards(megabytes, sizes):
    files = [file_of(str(n), size * MIB) for n, size in enumerate(megabytes)]
    assert [-(-size // MIB) for size in choose_shard_sizes(files)] == sizes


@given(sizes=st.lists(st.integers(1, 1 << 32), min_size=2, max_size=9), split=st.integers(1, 8))
def test_inputs_added_at_the_end_change_no_shard(sizes, split):
    files = [file_of(str(n), size) for n, size in enumerate(sizes)]
    assert choose_shard_sizes(files)[:split] == choose_shard_sizes(files[:split])


def test_many_small_files_get_few_shards():
    files = [file_of(str(number), 60) for number in range(100_000)]
    assert len(list(plan_shards(files, choose_shard_sizes(files)))) < 100


def test_find_inputs_keeps_the_order_given_and_sorts_patterns(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c[1].jsonl", "z.jsonl"):
        (tmp_path / name).write_text("{}\n")
    found = look_at_inputs(
        find_paths([str(tmp_path / "z.jsonl"), str(tmp_path / "[ab].jsonl"), str(tmp_path / "c[1].jsonl")])
    )
    assert [file.path.rpartition("/")[2] for file in found] == ["z.jsonl", "a.jsonl", "b.jsonl", "c[1].jsonl"]


SETTINGS = {"tokenizer": "aa", "append-eod": 0}
OLD = Plan(settings=SETTINGS, inputs=(file_of("a"), file_of("b"))).to_json()


@pytest.mark.parametrize(("settings", "inputs", "message"), [
    ({}, [file_of("a"), file_of("b")], None),
    ({}, [file_of("a"), file_of("new"), file_of("b")], "the input /new was added"),
    ({"engine": "x"}, [file_of("a"), file_of("b")], 'engine was not set and is "x"'),
    ({}, [file_of("a")], "the input /b is missing from --input"),
    ({}, [file_of("a"), file_of("b", 11)], "the input /b was written again (10 bytes then, 11 now)"),
    ({}, [file_of("a"), file_of("b", version="2")], "the input /b was written again (10 bytes then, 10 now)"),
    ({}, [file_of("b"), file_of("a")], "the inputs are in another order"),
])  # fmt: skip
def test_describe_changes_names_each(settings, inputs, message):
    plan = Plan(settings={**SETTINGS, **settings}, inputs=tuple(inputs))
    changes = [*describe_settings(OLD, plan), *describe_inputs(OLD, plan)]
    assert changes == ([] if message is None else [message])


def test_plan_id_depends_on_every_setting_and_input():
    plans = [
        Plan(settings=SETTINGS, inputs=(file_of("a"),)),
        Plan(settings={**SETTINGS, "x": 1}, inputs=(file_of("a"),)),
        Plan(settings=SETTINGS, inputs=(file_of("a", 11),)),
        Plan(settings=SETTINGS, inputs=(file_of("a", version="2"),)),
    ]
    assert len({plan.plan_id for plan in plans}) == len(plans)


def test_dry_run_agrees_with_the_build_that_follows(make_config, tmp_path):
    """The sample of a small input is all of it, so the figures are exact."""
    config = make_config(json_keys=("text",))
    plan = estimate_build(config)
    assert os.listdir(tmp_path) == []
    built = run_config(config).datasets[0]
    assert plan.estimate.documents == built.num_documents
    # EOD is counted for documents without tokens too, which get none.
    assert built.num_tokens <= plan.estimate.tokens <= built.num_tokens + built.num_documents
    assert plan.bin_bytes == pytest.approx(built.files["bin"].size_bytes, rel=0.01)
    assert plan.idx_bytes == pytest.approx(built.files["idx"].size_bytes, rel=0.05)
    assert (plan.token_dtype, plan.limits) == ("uint16", ())


def test_sample_of_a_large_input_stands_for_the_whole(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "PIECE_BYTES", 4096)
    monkeypatch.setattr(estimate, "NUM_PIECES", 16)
    path = tmp_path / "large.jsonl"
    path.write_text("".join(f'{{"text": "word number {number} of many"}}\n' for number in range(30_000)))
    plan = estimate_build(make_config(input=(str(path), str(OWN.docs)), shard_size="64KiB"))
    small = OWN.docs.read_bytes().count(b"\n")
    assert plan.estimate.documents == pytest.approx(30_000 + small, rel=0.15)
    assert plan.num_shards == -(-path.stat().st_size // 65536) + -(-OWN.docs.stat().st_size // 65536)


def test_dry_run_says_what_a_build_takes_and_what_there_is_no_room_for(make_config, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(estimate, "free_bytes", lambda _folder: 0)
    config = make_config()
    words = ["build", "--dry-run", "--input", *config.input, "--tokenizer-model", config.tokenizer_model]
    shown = cli([*words, "--shard-size", "8KiB", "--workers", "3", "--output-prefix", config.output_prefix]).out
    *lines, last = shown.splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert names == ["inputs", "shards", "documents", "tokens", "output", "work folder", "memory"]
    assert "with 3 workers" in shown
    assert last.startswith(f"{tmp_path}/out and {tmp_path}/out/docs.build: about ")
    assert last.endswith("0.00 kB are free; make room")
    assert os.listdir(tmp_path) == []
    cli([*words, "--output-prefix", "x", "--input", str(tmp_path / "none")], 1)


@pytest.mark.parametrize(("sizes", "num_pieces"), [
    ([], 0), ([0, 0], 0), ([5], 1), ([70 * MIB], 2), ([10**9, 0, 10**9], 31), ([10**13], 256), ([10**8] * 10_000, 256),
], ids=["none", "empty", "tiny", "small", "two", "huge", "many"])  # fmt: skip
def test_sample_spreads_over_all_inputs(sizes, num_pieces):
    pieces = audited_pieces(sizes)
    assert len(pieces) == num_pieces
    assert all(0 <= piece.begin < piece.end <= sizes[piece.input] for piece in pieces)
    total = sum(piece.end - piece.begin for piece in pieces)
    assert total <= min(4 * MIB, sum(sizes) // 4000 + 16 * 1024)
    bases = np.concatenate([[0], np.cumsum(sizes)])
    positions = [bases[piece.input] + piece.begin for piece in pieces]
    assert positions == sorted(positions)
    if num_pieces > 2:
        assert max(np.diff(positions)) <= sum(sizes) / num_pieces + 1


def test_encoding_a_piece_counts_what_begins_in_it(tmp_path):
    texts = ["one", "two words", "", "a longer text of several words"]
    lines = [json.dumps({"text": text, "title": "x"}) for text in texts]
    lines[2:2] = ["not a record", ""]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines) + "\n")
    tokenizer = load_tokenizer(str(OWN.plain_tokenizer))
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "tokenizers", add_special_tokens=True))
    inputs = look_at_inputs(find_paths([str(path)]))
    size = path.stat().st_size
    # The first line belongs to whoever holds its first byte.
    first, rest, whole = (
        encode_piece(Piece(input=0, begin=begin, end=end), inputs, ["text", "title"], encoder)
        for begin, end in ((0, 1), (1, size), (0, size))
    )
    assert (first.documents, rest.documents, whole.documents) == (1, 3, 4)
    assert (first.texts, whole.texts, first.bad_records, whole.bad_records) == (2, 8, 0, 1)
    assert first.tokens + rest.tokens == whole.tokens > 0
    assert whole.longest_text == rest.longest_text > first.longest_text > 0


@pytest.mark.parametrize("form", ["gz", "zst", "parquet"])
def test_compressed_inputs_and_tables_are_counted_as_lines_are(form, make_config, tmp_path):
    rows = [{"text": f"number {number} " * (number // 20)} for number in range(1_000)]  # the last are the longest
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path = tmp_path / f"in.{form}"
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    else:
        path.write_bytes(gzip.compress(text) if form == "gz" else pa.compress(text, "zstd", asbytes=True))
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(text)
    of_lines, of_form = (estimate_build(make_config(input=(str(each),))).estimate for each in (plain, path))
    assert (of_form.shown_documents, of_form.shown_tokens) == (of_lines.shown_documents, of_lines.shown_tokens)
    assert of_form.token_margin == 0
