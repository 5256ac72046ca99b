"""Small inputs for builds that are disturbed, and what a folder of outputs holds."""

import json
import os
import random

from dsindex.runtime.work_folder import Journal
from tests.support.golden import OWN
from tests.support.published import published

TOKENIZER = ("--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod")

BROKEN = {
    "not JSON": b'{"text": "x",}',
    "cut off": b'{"text": "x',
    "two objects": b'{"text": "a", "title": "b"} {"text": "c", "title": "d"}',
    "not an object": b"[1, 2]",
    "a number": b"17",
    "no text": b'{"title": "x"}',
    "wrong type": b'{"text": 5, "title": "x"}',
    "null": b'{"text": null, "title": "x"}',
    "invalid UTF-8": b'{"text": "\xff\xfe", "title": "x"}',
    "lone surrogate": b'{"text": "\\ud800", "title": "x"}',
    "mixed list": b'{"text": ["a", 1], "title": "x"}',
    "control character": b'{"text": "a\x01b", "title": "x"}',
    "not JSON at all": b"ein Satz, kein Datensatz",
    "NUL": b"\x00\x00\x00",
}
"""Every way in which a line is no record with a text and a title."""


def write_corpus(path, *, num_lines, broken, seed=7):
    """Write records with a text and a title; `broken` gives the lines (0-based) that are none, some lines are blank."""
    rng = random.Random(seed)
    words = (OWN.docs).read_text(encoding="utf-8").split()
    with path.open("wb") as file:
        for number in range(num_lines):
            if number in broken:
                file.write(broken[number] + b"\n")
            elif number % 37 == 5:
                file.write(b" \n")
            else:
                text = " ".join(rng.choices(words, k=rng.randrange(40)))
                record = {"title": f"document {number}", "text": text}
                file.write(json.dumps(record, ensure_ascii=number % 2 == 0).encode() + b"\n")


def command(corpus, out, *more):
    """Return a build of one file in many shards."""
    build = ["build", "--input", str(corpus), *TOKENIZER, "--output-prefix", str(out / "x"), "--shard-size", "6KiB"]
    return [*build, *more]


def committed_shards(work_dir):
    """Return the shards that a journal has of inputs as they are now: path and first byte."""
    if not (work_dir / "journal.jsonl").exists():
        return set()
    keys = [key.split("\0") for key in Journal(str(work_dir)).shards]
    times_by_path = {path: os.stat(path).st_mtime_ns for path in {path for path, *_ in keys}}
    return {f"{path} {begin}" for path, _size, version, begin, *_ in keys if version == str(times_by_path[path])}


def assert_continues(zygote, arguments, out, scratch, expected):
    """Run an interrupted build to its end: it makes no committed shard again; return the shards that were committed."""
    committed = committed_shards(out / "x.build")
    again = zygote.run(scratch / "run", arguments)
    assert again.code == 0, again.errors
    assert published(out) == expected
    assert not committed & set(again.tokenized)
    return committed
