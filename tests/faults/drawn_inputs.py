"""The inputs of drawn jobs and the words of their commands: all drawn from a job's seed."""

from __future__ import annotations

import json
import random
from functools import partial

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from dsindex.commands.api import build_index
from tests.faults.corpus import BROKEN, TOKENIZER
from tests.support.compressed import COMPRESSORS
from tests.support.conversations import CONVERSATIONS
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, OWN
from tests.support.pbin_files import write_pbin

WORDS = OWN.docs.read_text(encoding="utf-8").split()
CHATS = CONVERSATIONS.read_bytes().splitlines(keepends=True)
CHAT_CONFIG = """\
special_tokens: {bos_token: <|endoftext|>, eos_token: <|endoftext|>}
message_construction: [role, instruction, conversations]
loss_masking_jq_patterns: ['.conversations | select(.from == "human")', .instruction, .role]
"""
SUFFIXES = {"gz": "one.gz", "members": "members.gz", "blocks": "blocks.gz", "zst": "one.zst", "frames": "frames.zst"}
SUFFIXES |= {"xz": "one.xz", "bz2": "one.bz2"}
TEXT_KINDS = (
    *("plain", "long", "twice", "link", "overlap", "folder", "tiny", "blank", "empty", "list", "stdin"),
    *("listed on stdin", "parquet", "arrow", *SUFFIXES),
)
CHAT_KINDS = ("plain", "long", "twice", "link", "list", "stdin", "folder", "parquet", "gz", "zst")


def write_text(path, *, rng, num_lines=None, is_chat=False, broken=0.03):
    """Write records, of which some are blank or bad; return the bytes."""
    lines = []
    for number in range(rng.choice((3, 12, 30) if is_chat else (3, 30, 80)) if num_lines is None else num_lines):
        if rng.random() < broken and not is_chat:
            lines.append(rng.choice((b" \n", *(bad + b"\n" for bad in BROKEN.values()))))
        elif is_chat:
            lines.append(rng.choice(CHATS))
        else:
            text = " ".join(rng.choices(WORDS, k=rng.randrange(60)))
            lines.append(json.dumps({"title": f"document {number}", "text": text}).encode() + b"\n")
    data = b"".join(lines)
    path.write_bytes(data if rng.random() < 0.8 else data.rstrip(b"\n"))
    return path.read_bytes()


def write_table(path, rows, *, kind):
    """Write rows as a table of several row groups or batches."""
    table = pa.Table.from_pylist(rows)
    if kind == "parquet":
        pa.parquet.write_table(table, path, row_group_size=max(1, len(rows) // 7))
    else:
        pa.feather.write_feather(table, path, compression="uncompressed", chunksize=max(1, len(rows) // 7))


def write_inputs(job, folder):
    """Write the inputs of a job below a folder; return the words that name them, and what is standard input."""
    (folder / "in").mkdir()
    broken = 0.03 if any("quarantine" in words for words in job.options) else 0.0
    words, lists, stdin = [], [], None
    for piece in job.inputs:
        kind, _, number = piece.rpartition(" ")
        kind = "plain" if stdin and "stdin" in kind else kind
        rng = random.Random(f"{job.seed} {piece}")
        write = partial(write_text, rng=rng, is_chat=job.command == "instruct", broken=broken)
        paths = write_piece(kind, folder / "in" / f"{number}.jsonl", rng, write)
        if kind in {"list", "listed on stdin"}:
            listed = paths[0].with_suffix(".txt")
            listed.write_text(f"{paths[0]}\n# a comment\n\n{paths[0]}\n")
            lists.append("-" if "stdin" in kind else str(listed))
            stdin = listed if "stdin" in kind else stdin
        elif kind == "stdin":
            stdin = paths[0].rename(folder / "in.stdin")
            words.append("-")
        else:
            words += map(str, paths)
    return [*(["--input", *words] if words else []), *(["--input-list", *lists] if lists else [])], stdin


def write_piece(kind, path, rng, write):
    """Write what one input of a kind names; return its paths."""
    if kind in {"folder", "tiny"}:
        folder = path.with_suffix("")
        folder.mkdir()
        for number in range(rng.randint(30, 80) if kind == "tiny" else 3):
            write(folder / f"{number:03}.jsonl", num_lines=rng.randint(1, 2) if kind == "tiny" else None)
        (folder / "README.md").write_text("no record\n")
        return [folder, folder / "001.jsonl"] if kind == "folder" else [folder]
    if kind in {"parquet", "arrow"}:
        rows = [json.loads(line) for line in write(path, broken=0.0).splitlines()]
        path.unlink()
        write_table(path.with_suffix(f".{kind}"), rows, kind=kind)
        return [path.with_suffix(f".{kind}")]
    if kind in SUFFIXES:
        data = write(path)
        path.unlink()
        path = path.with_name(f"{path.name}.{SUFFIXES[kind].rpartition('.')[2]}")
        path.write_bytes(COMPRESSORS[SUFFIXES[kind]](data))
        return [path]
    write(path, num_lines=160 if kind in {"long", "twice"} else None)
    if kind in {"blank", "empty"}:
        path.write_bytes(b"\n \n" if kind == "blank" else b"")
    if kind == "link":
        path.with_suffix(".link.jsonl").symlink_to(path)
        return [path.with_suffix(".link.jsonl"), path]
    if kind == "overlap":
        write(path.with_suffix(".b.jsonl"))
        return [path.with_name(f"{path.stem}*.jsonl"), path]
    return [path, path] if kind == "twice" else [path]


def write_datasets(job, folder):
    """Write or choose the datasets that a job reads; return their paths."""
    (folder / "in").mkdir()
    paths = []
    for piece in job.inputs:
        number = piece.rpartition(" ")[2]
        rng = random.Random(f"{job.seed} {piece}")
        documents = [[[rng.randrange(500) for _ in range(rng.randrange(60))]] for _ in range(rng.choice((1, 30, 400)))]
        if job.command == "pack --merge" or (job.command == "convert" and job.seed % 2):
            documents = [[token for part in document for token in part] for document in documents]
            path = write_pbin(folder / "in" / f"{number}.pbin", documents, token_bytes=2)
        elif rng.random() < 0.4:
            path = str(GOLDEN / rng.choice(("eod_text_document", "keys_title_document", "sentences_text_document")))
        else:
            path = write_dataset(folder / "in" / number, documents)
        paths += [path] * (2 if piece.startswith("twice") and job.command != "convert" else 1)
    return paths


# Commands.


def words_over_datasets(job, folder, out):
    """Write or choose the datasets that a job reads; return its words without options."""
    paths, is_continuing = write_datasets(job, folder), any("--continue-from" in words for words in job.options)
    if is_continuing:
        first = {"seq_length": 32, "num_samples": 300, "split": "1", "plain_names": True}
        build_index(["1", paths[0]], data_cache_path=str(folder / "in" / "cache"), **first)
    match job.command:
        case "merge":
            return ["merge", "--input", *paths, "--output-prefix", f"{out}/x"]
        case "pack --merge":
            return ["pack", "--merge", *paths, "--output", f"{out}/x.pbin"]
        case "convert":
            return ["convert", paths[0], f"{out}/x" if paths[0].endswith(".pbin") else f"{out}/x.pbin"]
    if job.seed % 2 or is_continuing:
        paths = [word for number, path in enumerate(dict.fromkeys(paths)) for word in (str(1 + number), path)]
    words = ["index", "--data-path", *paths, "--seq-length", "32", "--num-samples", "300", "--split", "1"]
    return [*words, "--data-cache-path", f"{out}/cache", "--plain-names"]


def words_of(job, folder, out, work=None):
    """Write the inputs of a job; return its words without those of its executor, and its standard input."""
    command = job.command
    options = [word.replace("IN", str(folder / "in")) for group in job.options for word in group]
    folder_words = ["--work-dir", str(work)] if work else []
    if command in {"merge", "pack --merge", "convert", "index"}:
        return [*words_over_datasets(job, folder, out), *options, *folder_words], None
    words, stdin = write_inputs(job, folder)
    if command == "raw-index":
        path = folder / "in" / "0.jsonl"
        write_text(path, rng=random.Random(job.seed), broken=0.0)
        return ["raw-index", str(path), "--output", f"{out}/x.idx"], None
    if command == "instruct":
        (folder / "chat.yaml").write_text(CHAT_CONFIG)
        words = ["instruct", str(folder / "chat.yaml"), *words, "--output-prefix", f"{out}/x", *TOKENIZER[:2]]
    elif command == "pack":
        words = ["pack", *words, *TOKENIZER[:2], "--output", f"{out}/x.pbin"]
    else:
        words = ["build", *words, *TOKENIZER, "--output-prefix", f"{out}/x"]
        if command == "build with index":
            words += ["--seq-length", "32", "--num-samples", "100", "--split", "1", "--plain-names"]
            words += ["--data-cache-path", f"{out}/cache"]
    return [*words, *options, *folder_words], stdin
