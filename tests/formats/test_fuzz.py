"""Trust no file: damaged files of every kind give our own errors only, at once, and cost no memory that they claim."""

import json
import os
import random
import shutil
import tracemalloc
from contextlib import suppress

import pytest

import dsindex
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import OWN

CASES = int(os.environ.get("DSINDEX_FUZZ_CASES", "25"))
"""Damaged files of each kind; the long form has 10,000."""
ALLOWANCE_BYTES = 12 << 20
"""Buffers of a fixed size, at most two of 4 MiB at a time, and what libraries keep."""
TEXTS = ["one text", "", "and another, a little longer", "three", "four <|endoftext|> five", "six seven eight"]
FILES = {
    "idx": "out/*.idx",
    "bin": "out/*.bin",
    "manifest": "out/*.manifest.json",
    "provenance": "out/*.provenance.parquet",
    "cache": "out/cache/*",
}


def build(folder):
    dsindex.build(
        str(folder.parent / "docs.jsonl"),
        tokenizer=str(OWN.plain_tokenizer),
        append_eod=True,
        output_prefix=str(folder / "out" / "docs"),
        executor="local",
        workers=1,
        shard_size=200,
        progress=False,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small dataset with caches and its work folder; what is written is not kept, as syncs would take most time."""
    root = tmp_path_factory.mktemp("fuzz")
    (root / "docs.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 2))
    folder = root / "copy"  # caches name their dataset by its path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _descriptor: None)
        build(folder)
        out = folder / "out"
        options = {"seq_length": 8, "epochs": 2, "split": "90,10,0", "executor": "local", "progress": False}
        dsindex.build_index(str(out / "docs_text_document"), data_cache_path=str(out / "cache"), **options)
        folder.rename(root / "whole")
        yield root / "whole"


def read(folder):
    """Read every document, verify and inspect; a fault in a file is a finding or an error of ours."""
    out = folder / "out"
    prefix = str(out / "docs_text_document")
    with suppress(dsindex.DsindexError):
        dataset = dsindex.open(prefix)
        for number in range(min(len(dataset), 50)):
            with suppress(dsindex.DsindexError):
                dataset[number].sum()
    with suppress(dsindex.DsindexError):
        dsindex.verify(prefix, cache=str(out / "cache"), executor="local", workers=1, progress=False)
    with suppress(dsindex.DsindexError):
        dsindex.inspect(prefix)


def damage(data, kind, rng):
    """Damage a file as bytes, or as the JSON that it holds."""
    if rng.random() < 0.6 and (kind == "manifest" or (kind == "cache" and data.startswith(b"{"))):
        return json.dumps(damage_json(json.loads(data), rng), indent=4).encode()
    return damage_bytes(data, rng)


def damaged_copy(whole, kind, seed):
    """Copy the dataset to where its caches expect it, and damage one file."""
    rng = random.Random(f"{kind} {seed}")
    folder = whole.parent / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    path = rng.choice(sorted(path for path in folder.glob(FILES[kind]) if path.is_file()))
    content = path.read_bytes()
    while (changed := damage(content, kind, rng)) == content:
        pass
    path.write_bytes(changed)
    return folder


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", FILES)
def test_damaged_file_gives_own_errors_only(kind, whole):
    read(whole)  # imports do not count
    for seed in range(CASES):
        folder = damaged_copy(whole, kind, seed)
        tracemalloc.start()
        try:
            read(folder)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        limit = 2 * sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) + ALLOWANCE_BYTES
        assert peak <= limit, f"{kind} {seed}: {peak} bytes, at most {limit} expected"


@pytest.mark.parametrize("kind", ["idx", "bin", "manifest", "provenance", "cache"])
def test_damage_is_noticed(kind, whole):
    """The cases above mean nothing if the damage never reaches a reader."""
    unnoticed = 0
    for seed in range(8):
        out = damaged_copy(whole, kind, seed) / "out"
        with suppress(dsindex.DsindexError):
            prefix = str(out / "docs_text_document")
            options = {"executor": "local", "workers": 1, "progress": False}
            unnoticed += bool(dsindex.verify(prefix, cache=str(out / "cache"), **options))
    assert unnoticed <= 2  # a description beside the data may say the same in other bytes
