"""Samples of records: chosen by their texts alone, in the wanted share, and nested."""

import itertools
import json

import xxhash

from dsindex.text.blocks import HASH_SEED, Sample, hash_records, sample_records
from dsindex.text.forms import TextPart
from dsindex.text.parts import read_part
from dsindex.text.selection import select_keys


def digest(value):
    """The slow reference of a key's hash."""
    texts = [value] if isinstance(value, str) else value
    hashes = [xxhash.xxh3_64_intdigest(text.encode(), seed=HASH_SEED) for text in texts]
    if len(hashes) == 1:
        return hashes[0]
    return xxhash.xxh3_64_intdigest(b"".join(each.to_bytes(8, "little") for each in hashes), seed=HASH_SEED)


def read(folder, records, *, keys=("text",)):
    path = folder / "in.jsonl"
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    size = path.stat().st_size
    return list(read_part(TextPart(path=str(path), begin=0, end=size, expected_size=size), select_keys(keys)))


VALUES = ["", "a", "ä€😀", "x" * 5000, ["a"], [], ["a", "b"], ["ab"], ["", ""]]


def test_hashes_are_those_of_the_reference(tmp_path):
    records = [{"text": text, "title": title} for text in VALUES for title in VALUES[::-1]]
    [block] = read(tmp_path, records, keys=("text", "title"))
    expected = [sum(map(digest, record.values())) % 2**64 for record in records]
    assert hash_records(block).tolist() == expected


def test_what_is_kept_is_consistent(tmp_path):
    records = [{"text": f"text {number}", "title": [f"title {number}"] * (number % 4)} for number in range(3000)]
    [block] = read(tmp_path, records, keys=("text", "title"))
    small, large = sample_records(block, (Sample(high=0.1),)), sample_records(block, (Sample(high=0.5),))
    for sample in (small, large):
        numbers = sample.lines.tolist()
        assert sample.num_filtered + len(numbers) == 3000
        assert sample.num_lines == 3000
        assert sample.offsets.tolist() == [block.offsets.tolist()[number] for number in numbers]
        assert sample.columns["text"].texts == [records[number]["text"] for number in numbers]
        assert sample.columns["title"].texts == [title for number in numbers for title in records[number]["title"]]
    assert 230 < len(small.lines) < 370
    assert 1400 < len(large.lines) < 1600
    assert set(small.lines.tolist()) <= set(large.lines.tolist())


def test_a_sample_and_its_complement_are_all(tmp_path):
    [block] = read(tmp_path, [{"text": str(number)} for number in range(1000)])
    parts = [Sample(high=0.3), Sample(low=0.3, high=0.8), Sample(low=0.8)]
    lines = [sample_records(block, (part,)).lines.tolist() for part in parts]
    assert all(lines)
    together = sorted(itertools.chain(*lines))
    assert together == sample_records(block, parts).lines.tolist()
    assert len(together) == 1000


def test_the_choice_never_changes(tmp_path):
    """A build that is continued with another version must keep the same records."""
    [block] = read(tmp_path, [{"text": f"text {number}"} for number in range(30)])
    assert sample_records(block, (Sample(high=0.3),)).lines.tolist() == [4, 6, 23, 24]
