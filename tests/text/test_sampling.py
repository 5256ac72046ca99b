"""Samples of records: chosen by their texts alone, in the wanted share, and nested."""

import itertools
import json

import xxhash

from dsindex.text.blocks import HASH_SEED, Sample, hash_records, sample_records
from dsindex.text.selection import open_selection
from tests.text.readings import parse


def digest(value):
    """The slow reference of a key's hash."""
    texts = [value] if isinstance(value, str) else value
    hashes = [xxhash.xxh3_64_intdigest(text.encode(), seed=HASH_SEED) for text in texts]
    if len(hashes) == 1:
        return hashes[0]
    return xxhash.xxh3_64_intdigest(b"".join(text_hash.to_bytes(8, "little") for text_hash in hashes), seed=HASH_SEED)


def read(records, *, keys=("text",)):
    return parse("\n".join(map(json.dumps, records)).encode(), open_selection(keys))


VALUES = ["", "a", "ä€😀", "x" * 5000, ["a"], [], ["a", "b"], ["ab"], ["", ""]]


def test_hashes_are_those_of_the_reference():
    records = [{"text": text, "title": title} for text in VALUES for title in VALUES[::-1]]
    block = read(records, keys=("text", "title"))
    expected = [sum(map(digest, record.values())) % 2**64 for record in records]
    assert hash_records(block).tolist() == expected


def test_a_sample_and_its_complement_are_all():
    block = read([{"text": str(number)} for number in range(1000)])
    parts = [Sample(high=0.3), Sample(low=0.3, high=0.8), Sample(low=0.8)]
    lines = [sample_records(block, (part,)).lines.tolist() for part in parts]
    assert all(lines)
    together = sorted(itertools.chain(*lines))
    assert together == sample_records(block, parts).lines.tolist()
    assert len(together) == 1000


def test_the_choice_never_changes():
    """A build that is continued with another version must keep the same records."""
    block = read([{"text": f"text {number}"} for number in range(30)])
    assert sample_records(block, (Sample(high=0.3),)).lines.tolist() == [4, 6, 23, 24]
