"""The bytes of text that a build counts: by input, the same for any shards, and on every page."""

import gzip
import json
import random

import pytest

import dsindex
from dsindex.formats.manifest import read_manifest
from tests.support.golden import OWN

TEXTS = ["", "alpha", "Größe 漢字", "x\ny \U0001f600", "<|endoftext|>"]


def records(rng, num):
    return [{"text": rng.choice(TEXTS) * rng.randrange(1, 30), "list": rng.choices(TEXTS, k=rng.randrange(3)), "n": n}
            for n in range(num)]  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """12 inputs, of which the last share shards, and the records of each."""
    folder, rng = tmp_path_factory.mktemp("inputs"), random.Random(3)
    made = {}
    for number in range(12):
        made[f"{number:02d}"] = records(rng, 60 if number < 3 else 5)
        lines = "\n".join(["no JSON", *map(json.dumps, made[f"{number:02d}"])]).encode()
        name = f"{number:02d}.jsonl" + (".gz" if number == 1 else "")
        (folder / name).write_bytes(gzip.compress(lines) if number == 1 else lines)
    return folder, list(made.values())


def build(source, folder, **options):
    dsindex.build(
        input=[str(path) for path in sorted(source[0].iterdir())],
        tokenizer=str(OWN.plain_tokenizer),
        output_prefix=str(folder / "x"),
        append_eod=True,
        on_bad_record="quarantine",
        **{"executor": "local", "workers": 2, **options},
    )


def counted(folder, name):
    content = read_manifest(str(folder / f"x_{name}_document")).content
    return content, [file.tokenized_bytes for file in content.inputs]


WAYS = [{"shard_size": "64KiB"}, {"engine": "tokenizers"}]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_bytes_are_those_of_the_kept_texts_of_each_input(way, source, tmp_path):
    options = {"json_keys": ("text", "list"), "where": ".n != 3", **WAYS[way]}
    build(source, tmp_path, **options)
    kept = [[record for record in file if record["n"] != 3] for file in source[1]]
    content, found = counted(tmp_path, "text")
    assert found == [sum(len(record["text"].encode()) for record in file) for file in kept]
    assert content.bytes_per_token == sum(found) / content.tokens
    _, found = counted(tmp_path, "list")
    assert found == [sum(len(text.encode()) for record in file for text in record["list"]) for file in kept]


def test_held_out_texts_are_counted_in_the_other_dataset(source, tmp_path):
    build(source, tmp_path, hold_out="20%")
    _, train = counted(tmp_path, "text")
    _, valid = counted(tmp_path, "valid_text")
    whole = [sum(len(record["text"].encode()) for record in file) for file in source[1]]
    assert [a + b for a, b in zip(train, valid, strict=True)] == whole
    assert all(0 < sum(part) < sum(whole) for part in (train, valid))
