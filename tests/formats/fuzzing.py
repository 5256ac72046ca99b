"""Damage files of a folder one at a time and read them, in a process of its own whose memory and time are limited.

MALLOC_ARENA_MAX=1 python -m tests.formats.fuzzing FOLDER 1000 [KIND ...]    makes the folder if it is not there
"""

import glob
import json
import os
import pickle
import random
import resource
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import dsindex
from dsindex.chat.config import read_instruction_config
from dsindex.options.build import BuildConfig
from dsindex.store.config_files import normalize_option_names, read_yaml
from tests.support.conversations import SPEC
from tests.support.damage import damage_bytes, damage_json
from tests.support.golden import OWN

TEXTS = ["one text", "", "and another, a little longer", "three", "four <|endoftext|> five", "six seven eight"] * 2
OPTIONS = {"executor": "local", "progress": False}
TOKENIZER = str(OWN.plain_tokenizer)
BASE_BYTES, TIMES_SIZE = 64 << 20, 20
CPU_SECONDS, SECONDS = 20, 300
FILES = {
    "idx": "d_text_document.idx", "bin": "d_text_document.bin", "manifest": "*.manifest.json",
    "provenance": "*.provenance.parquet", "cache": "cache/*",
    "pbin": "p.pbin", "raw index": "lines.idx", "journal": "d.build/*.json*", "yaml": "*.yaml",
}  # fmt: skip


def make(folder):
    """A small dataset with its work folder, one of it twice, caches, a `.pbin`, a raw index and configurations."""
    Path(folder).mkdir()
    os.chdir(folder)
    Path("lines.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    text = {"input": "lines.jsonl", "tokenizer": TOKENIZER, "shard_size": 200, **OPTIONS}
    dsindex.build(**text, append_eod=True, output_prefix="d", keep_shards=True)
    dsindex.merge(["d_text_document"] * 2, output_prefix="twice", **OPTIONS)
    dsindex.pack(**text, output="p.pbin")
    dsindex.raw_index("lines.jsonl")
    index = {"seq_length": 8, "num_samples": "5,1,0", "split": "9,1,0", "data_cache_path": "cache"}
    dsindex.build_index(["d_text_document", "twice"], **index, **OPTIONS)
    Path("chat.yaml").write_text(json.dumps(SPEC, indent=1))
    options = f"input: [lines.jsonl]\ntokenizer-model: {TOKENIZER}\noutput_prefix: x\nsample: 10%\n"
    Path("build.yaml").write_text(options)


def read_items(path, way="decode", **options):
    dataset = dsindex.open(path, **options)
    for number in range(min(len(dataset), 20)):
        attempt(lambda number=number: dataset[number])
        attempt(lambda number=number: getattr(dataset, way)(number))


def convert():
    for name in glob.glob("converted.*"):
        os.unlink(name)
    dsindex.convert("p.pbin", "converted")


def read_options():
    return BuildConfig(**normalize_option_names(read_yaml("build.yaml"), source="build.yaml"))


DATASET = [
    lambda: read_items("d_text_document"), lambda: dsindex.verify(["d_text_document"], cache="cache", **OPTIONS),
    lambda: dsindex.verify("twice", same_as="d_text_document", **OPTIONS), lambda: dsindex.inspect("d_text_document"),
    lambda: dsindex.inspect("twice", document=3), lambda: dsindex.inspect("cache"),
    lambda: read_items("cache", "trace"), lambda: dsindex.trace("cache", consumed=2),
]  # fmt: skip
PBIN = [
    lambda: read_items("p.pbin"), lambda: read_items("p.pbin", block_size=4),
    lambda: dsindex.verify("p.pbin", **OPTIONS), lambda: dsindex.inspect("p.pbin"), convert,
]  # fmt: skip
CALLS = {
    "pbin": PBIN,
    "raw index": [lambda: read_items("lines.jsonl"), lambda: dsindex.inspect("lines.jsonl")],
    "journal": [lambda: dsindex.inspect("d.build")],
    "yaml": [lambda: read_instruction_config(Path("chat.yaml")), read_options],
}


def attempt(call):
    """Tell whether a call ends with a sentence or with findings; a lack of memory is neither."""
    try:
        result = call()
    except dsindex.DsindexError as error:
        cause = error
        while cause is not None:
            if isinstance(cause, MemoryError):
                raise
            cause = cause.__cause__ or cause.__context__
        return True
    return getattr(result, "ok", True) is False


def as_bomb(content, rng):
    """Return small content that becomes large: a pickle of pairs of pairs, or JSON of many lists."""
    at = content.find(b"\x80\x04")
    if at >= 0:
        pair = (0, 1)
        for _ in range(rng.randrange(1, 60)):
            pair = (pair, pair)
        return content[:at] + pickle.dumps([pair], protocol=4)
    number = rng.choice([600, 20_000, 1_000_000])
    inner = rng.choice([b"", b'"s3://user@bucket?key"'])
    lists = rng.choice([b"[" * number + inner + b"]" * number, b"[" + b"[]," * number + b"0]"])
    lines = content.splitlines(keepends=True) if content.count(b"\n{") else [content]
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(damage_json(json.loads(lines[at]), rng, ["@"])).encode().replace(b'"@"', lists)
    return b"".join(lines)


def damaged(content, rng):
    change = rng.random()
    with suppress(ValueError, IndexError):  # it is no JSON
        if change < 0.2:
            return as_bomb(content, rng)
        if change < 0.6:
            lines = content.splitlines(keepends=True) if content.count(b"\n{") else [content]
            at = rng.randrange(len(lines))
            lines[at] = json.dumps(damage_json(json.loads(lines[at]), rng)).encode() + b"\n"
            return b"".join(lines)
    return damage_bytes(content, rng)


def run(kind, number):
    """Return how many cases had faults, and how many were noticed."""
    calls = CALLS.get(kind, DATASET)
    for _ in range(2):  # what is imported and kept does not count
        for call in calls:
            attempt(call)
    with open("/proc/self/statm") as file:
        base = int(file.read().split()[0]) * resource.getpagesize()
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    faults = noticed = 0
    for seed in range(number):
        rng = random.Random(f"{kind} {seed}")
        path = rng.choice(sorted(glob.glob(FILES[kind])))
        content = Path(path).read_bytes()
        while (changed := damaged(content, rng)) == content:
            pass
        Path(path).write_bytes(changed)
        sys.stdout.write(f"{kind} {seed}: {path}\n")
        sys.stdout.flush()
        resource.setrlimit(resource.RLIMIT_AS, (base + BASE_BYTES + TIMES_SIZE * len(changed), unlimited[1]))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # the system ends the process
        signal.alarm(SECONDS)
        try:
            noticed += sum(map(attempt, calls)) > 0
        except BaseException:  # noqa: BLE001 - a traceback, or a lack of memory
            traceback.print_exc(limit=-6, file=sys.stdout)
            faults += 1
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        Path(path).write_bytes(content)
    return faults, noticed


if __name__ == "__main__":
    folder, number, *kinds = sys.argv[1:]
    if not os.path.exists(folder):
        make(folder)
    os.chdir(folder)
    threading.stack_size(1 << 19)
    told = {kind: run(kind, int(number)) for kind in kinds or FILES}
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.exit(any(faults for faults, _ in told.values()))
