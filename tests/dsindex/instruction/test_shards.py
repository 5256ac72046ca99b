"""A shard of conversations: what the encoder gives, record by record, wherever a file is cut."""

import json
import os
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from dsindex.datasets.provenance import PROVENANCE
from dsindex.engine.shards.tokenize import ShardTask
from dsindex.errors import BadRecordError, OutputError, RecordProblem
from dsindex.formats.mmididx import check_index, read_index
from dsindex.instruction.config import check_config
from dsindex.instruction.recipe import make_instruction_encoder, make_recipe
from dsindex.instruction.records import parse_record
from dsindex.instruction.splits import split_by_hash
from dsindex.jobs.instruct_shards import (
    InstructionSettings,
    bad_records_of,
    encode_shard,
    split_names,
    statistics_of,
    text_key,
)
from dsindex.store.ownership import MARKER_FILE, mark_folder
from dsindex.text.engines import choose_engine
from dsindex.text.tokenizer import load_tokenizer
from tests.support.conversations import BAD, CONVERSATIONS, SPEC
from tests.support.golden import OWN


def recipe_of(**options):
    folder = str(OWN.plain_tokenizer)
    tokenizer = load_tokenizer(folder)
    engine = choose_engine(tokenizer, "auto", add_special_tokens=False)
    return make_recipe(check_config({**SPEC, **options}, source="test"), tokenizer, folder, engine=engine)


def settings_of(work_dir, recipe=None, **options):
    work_dir.mkdir(exist_ok=True)
    mark_folder(str(work_dir))
    defaults = {
        "recipe": recipe or recipe_of(),
        "vocabulary_size": load_tokenizer(str(OWN.plain_tokenizer)).vocabulary_size,
        "dtype": "<u2",
        "fractions": None,
        "split_seed": 1234,
        "quarantine": True,
        "max_record_bytes": None,
        "provenance": True,
        "work_dir": str(work_dir),
    }
    return InstructionSettings(**{**defaults, **options})


def tasks_of(path, cuts):
    status = path.stat()
    edges = [0, *cuts, status.st_size]
    return [
        ShardTask(
            shard=number,
            input=0,
            path=str(path),
            begin=begin,
            end=end,
            input_size_bytes=status.st_size,
            input_version=str(status.st_mtime_ns),
        )
        for number, (begin, end) in enumerate(pairwise(edges))
    ]


def written(work_dir, results, key):
    """Tokens, sequence lengths, and sequences per document of all shards, one after the other."""
    tokens = []
    lengths = []
    per_document = []
    for result in results:
        part = next(part for part in result.keys if part.key == key)
        index = read_index(str(work_dir / part.idx.name))
        check_index(part.idx.name, index, bin_size_bytes=part.bin.size_bytes)
        tokens.append(np.fromfile(work_dir / part.bin.name, index.dtype))
        lengths += index.sequence_lengths.tolist()
        per_document += np.diff(index.document_indices).tolist()
        assert (part.num_tokens, part.num_documents) == (len(tokens[-1]), len(index.document_indices) - 1)
    return np.concatenate(tokens), lengths, per_document


def slow_reference(path, recipe):
    """Each conversation with the offset and 0-based number of its line, and the kinds of the others."""
    encoder, found, bad, offset = make_instruction_encoder(recipe), [], Counter[str](), 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True)):
        if line.strip():
            try:
                found.append((offset, number, encoder.encode(parse_record(line.strip()))))
            except RecordProblem as problem:
                bad[problem.kind] += 1
        offset += len(line)
    return found, bad


@pytest.mark.quick(2)
@pytest.mark.parametrize("cuts", [[], [1], [700, 701, 3000, 40_000], list(range(500, 20_000, 500))], ids=len)
@pytest.mark.parametrize("fractions", [None, (2.0, 1.0, 1.0)])
def test_shards_are_what_the_encoder_gives(tmp_path, cuts, fractions):
    path = tmp_path / "a.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:60]
    path.write_bytes(b"\n".join([*lines[:3], *BAD, b"", b"  ", *lines[3:]]))
    recipe = recipe_of(max_length=300, too_long="split")
    settings = settings_of(tmp_path / "work", recipe, fractions=fractions)
    results = [encode_shard(task, settings) for task in tasks_of(path, cuts)]
    expected, bad = slow_reference(path, recipe)
    assert bad_records_of(results) == dict(sorted(bad.items()))
    assert set(BAD.values()) <= set(bad)
    assert sum(result.num_lines for result in results) == 60 + len(BAD) + 2
    assert sum(result.num_records for result in results) == len(expected)
    assert any(len(encoded.lengths) > 1 for _, _, encoded in expected)
    for split in split_names(fractions):
        own = [
            entry
            for entry in expected
            if fractions is None or split_by_hash(entry[2].fingerprint, fractions=fractions) == split
        ]
        assert own
        tokens, lengths, per_document = written(tmp_path / "work", results, text_key(split))
        masks, *mask_shape = written(tmp_path / "work", results, text_key(split).replace("text_document", "loss_mask"))
        assert np.array_equal(tokens, np.concatenate([encoded.tokens for _, _, encoded in own]))
        assert np.array_equal(masks, np.concatenate([encoded.mask for _, _, encoded in own]))
        assert lengths == [int(length) for _, _, encoded in own for length in encoded.lengths]
        assert per_document == [len(encoded.lengths) for _, _, encoded in own]
        assert mask_shape == [lengths, per_document]
        assert statistics_of(results, split).learnt == int(masks.sum())
        assert provenance_of(tmp_path / "work", results, text_key(split)) == [entry[:2] for entry in own]


def provenance_of(work_dir, results, key):
    rows, first_line = [], 0
    for result in results:
        stored = next(part.provenance for part in result.keys if part.key == key)
        for offset, line in np.fromfile(work_dir / stored.name, PROVENANCE).tolist():
            rows.append((offset, line + first_line))
        first_line += result.num_lines
    return rows


def test_first_bad_record_is_named_and_leaves_no_file(tmp_path):
    path = tmp_path / "a.jsonl"
    good = CONVERSATIONS.read_bytes().splitlines()[0]
    path.write_bytes(b"\n".join([good, *BAD]))
    settings = settings_of(tmp_path / "work", quarantine=False)
    with pytest.raises(BadRecordError, match=r"expected JSON in UTF-8.*\(bad-json\)") as caught:
        encode_shard(tasks_of(path, [])[0], settings)
    assert caught.value.offset == len(good) + 1
    assert [name for _, _, names in os.walk(tmp_path / "work") for name in names] == [MARKER_FILE]


def test_record_over_the_limit_is_set_aside_with_as_much_as_the_limit(tmp_path):
    path = tmp_path / "a.jsonl"
    good = CONVERSATIONS.read_bytes().splitlines()[0]
    short, huge = good.replace(b"A patient", b"A" * 200), b'{"role": "' + b"x" * (3 << 20) + b'"}'
    path.write_bytes(b"\n".join([short, huge, good]))
    settings = settings_of(tmp_path / "work", max_record_bytes=len(good))
    result = encode_shard(tasks_of(path, [])[0], settings)
    assert (result.num_lines, result.num_records, result.num_quarantined) == (3, 1, 2)
    assert bad_records_of([result]) == {"too-large": 2}
    lines = [json.loads(line) for line in (tmp_path / "work" / result.quarantine.name).read_text().splitlines()]
    assert [(line["line"], len(line["raw"])) for line in lines] == [(0, len(good)), (1, len(good))]
    assert (
        f"record of {len(huge)} bytes is larger than the limit of {len(good)} bytes (too-large)" in lines[1]["reason"]
    )


def test_late_attempt_does_not_bring_the_work_folder_back(tmp_path):
    settings = settings_of(tmp_path / "work")
    (tmp_path / "work" / MARKER_FILE).unlink()
    (tmp_path / "work").rmdir()
    with pytest.raises(OutputError, match="expected the work folder"):
        encode_shard(tasks_of(CONVERSATIONS, [])[0], settings)
    assert not (tmp_path / "work").exists()


def test_recipe_carries_the_whole_configuration():
    options = {
        "jq_patterns": {"role": ".role", "instruction": ".instruction", "conversations": ".conversations"},
        "max_length": 64,
        "too_long": "truncate",
        "role_prefixes": {"user": "USER: "},
    }
    recipe = recipe_of(**options)
    record = parse_record(CONVERSATIONS.read_bytes().splitlines()[1])
    direct = make_instruction_encoder(recipe)._config
    assert direct == check_config({**SPEC, **options}, source="test")
    assert len(make_instruction_encoder(recipe).encode(record).tokens) == 64
    assert make_instruction_encoder(recipe) is make_instruction_encoder(recipe_of(**options))
