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
    records_by_name = {}
    for number in range(12):
        records_by_name[f"{number:02d}"] = records(rng, 60 if number < 3 else 5)
        lines = "\n".join(["no JSON", *map(json.dumps, records_by_name[f"{number:02d}"])]).encode()
        name = f"{number:02d}.jsonl" + (".gz" if number == 1 else "")
        (folder / name).write_bytes(gzip.compress(lines) if number == 1 else lines)
    return folder, list(records_by_name.values())


@pytest.mark.parametrize("way", [{"shard_size": "64KiB"}, {"engine": "tokenizers"}, {"hold_out": "20%"}], ids=str)
def test_bytes_are_those_of_the_kept_texts_of_each_input(way, source, tmp_path):
    options = {"append_eod": True, "on_bad_record": "quarantine", "executor": "local", "workers": 2, **way}
    options |= {"json_keys": ("text", "list"), "where": ".n != 3", "output_prefix": str(tmp_path / "x")}
    built = dsindex.build(list(map(str, sorted(source[0].iterdir()))), tokenizer=str(OWN.plain_tokenizer), **options)
    kept_records = [[record for record in file if record["n"] != 3] for file in source[1]]
    texts = [sum(len(record["text"].encode()) for record in file) for file in kept_records]
    lists = [sum(len(text.encode()) for record in file for text in record["list"]) for file in kept_records]
    contents = [read_manifest(prefix).content for prefix in built.prefixes]
    sizes = [[file.tokenized_bytes for file in content.inputs] for content in contents]
    assert [content.bytes_per_token * content.tokens for content in contents] == pytest.approx(list(map(sum, sizes)))
    held_out = sizes[2:] or [[0] * len(texts)] * 2
    for pairs, expected in zip(zip(sizes[:2], held_out, strict=True), (texts, lists), strict=True):
        assert [a + b for a, b in zip(*pairs, strict=True)] == expected
    assert all(map(sum, sizes))
