"""A mixture delivered in an afternoon: `python -m tests.benchmarks.afternoon CORPUS TOKENIZER --output FOLDER`.

CORPUS has JSONL files whose records name their source. One gets a bad line, which is mended; the sources become
datasets in one pass, with held-out validation sets; a byte of a finished dataset changes and is mended; the datasets
are mixed, indexed for a job's script, handed over, and proven, described and traced where they arrive. Each step is a
command as it would be typed. Printed are what it made somebody wait, its CPU time and its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dsindex.amounts import align, format_size
from tests.benchmarks.processes import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Step = tuple[str, int, list[str]]
    """What is done, the exit code that it should have, and the words after `dsindex`."""

SEQUENCE_LENGTH, BATCH, RELEASE = 1024, 8, "0.19"


def lay_text(corpus: Path, folder: Path) -> tuple[Path, Path]:
    """Link a corpus's files into a folder, the smallest with a line that ends too early; return both of its paths."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = sorted(corpus.glob("*.jsonl"))
    smallest = min(files, key=lambda path: path.stat().st_size)
    for path in files:
        if path != smallest:
            (folder / path.name).symlink_to(path.resolve())
    lines = smallest.read_bytes().splitlines(keepends=True)
    bad = len(lines) // 2
    lines[bad] = lines[bad][: len(lines[bad]) // 2] + b"\n"
    (folder / smallest.name).write_bytes(b"".join(lines))
    return smallest, folder / smallest.name


def change_byte(path: Path) -> None:
    """Change one byte in the middle of a file, as a bad disk does."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def write_script(path: Path, said: str) -> None:
    """Write the script of a training job with the flags that `mix` said."""
    flags = said[said.rindex("\n\n") :].split("\n")
    path.write_text("#!/bin/bash\n" + " \\\n    ".join(["torchrun pretrain_gpt.py", *filter(None, flags)]) + "\n")


def steps(corpus: Path, tokenizer: str, folder: Path, by: str, hold_out: str) -> Iterator[Step]:
    """Yield the steps; between them, do what the world does to the files. What a step printed is in `said.txt`."""
    original, spoiled = lay_text(corpus, folder / "text")
    text = sorted(map(str, (folder / "text").iterdir()))
    common = ["--input", *text, "--tokenizer-model", tokenizer, "--append-eod", "--output-prefix", "data/mix"]
    build = ["build", *common, "--output-by", by, "--hold-out", hold_out, "--keep-shards"]
    yield "estimate", 0, ["plan", *common]
    yield "build, stopped by a bad line", 1, build
    spoiled.write_bytes(original.read_bytes())
    yield "the same after mending it", 0, build
    datasets = sorted(path for path in (folder / "data").glob("mix_*.bin") if "_valid_" not in path.name)
    prefixes = [f"data/{path.stem}" for path in datasets]
    yield "verify all", 0, ["verify", *prefixes]
    change_byte(datasets[-1])
    yield "verify after a byte changed", 1, ["verify", *prefixes]
    yield "build, refused: a file is not as built", 1, build
    datasets[-1].unlink()
    yield "the same without that file", 0, build
    delivery = ["--data-cache-path", "cache", "--write", "delivery.yaml", "--megatron-release", RELEASE]
    job = ["--seq-length", str(SEQUENCE_LENGTH), "--global-batch-size", str(BATCH)]
    job += ["--eval-interval", "1000", "--eval-iters", "10"]
    flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer]
    yield "mix, and write the delivery", 0, ["mix", *prefixes, *job, *flags, *delivery]
    write_script(folder / "train.sh", (folder / "said.txt").read_text())
    yield "index for the job's script", 0, ["index", "--from-command", "train.sh", "--megatron-release", RELEASE]
    yield "put the caches into the delivery", 0, ["index", "delivery.yaml"]
    there = folder / "there"
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir()
    for name in ("data", "cache"):
        shutil.copytree(folder / name, there / name, ignore=shutil.ignore_patterns("*.build"))
    shutil.copy(folder / "delivery.yaml", there)
    yield "verify where it arrives", 0, ["verify", "there/delivery.yaml"]
    yield "report", 0, ["report", "there/delivery.yaml", "-o", "there/report.html"]
    yield "trace a step", 0, ["trace", "there/delivery.yaml", "--step", "1", "--global-batch-size", str(BATCH)]


def main(words: Sequence[str] | None = None) -> int:
    """Run all steps and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="made anew")
    parser.add_argument("--by", default=".meta.source", help="the key of a record's source (default: .meta.source)")
    parser.add_argument("--hold-out", default="0.5%", help="share of valid (default: 0.5%%)")
    options = parser.parse_args(words)
    folder = options.output.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    rows = [("step", "words", "wait", "CPU", "memory")]
    figures = []
    for what, code, typed in steps(options.corpus, options.tokenizer, folder, options.by, options.hold_out):
        fails = ["sh", "-c", '"$@"; [ $? -eq 1 ]', "sh"] if code else []
        run = measure([*fails, sys.executable, "-m", "dsindex", *typed], cwd=folder)
        (folder / "said.txt").write_text(run.output)
        rows.append(
            (what, f"{len(typed)}", f"{run.seconds:.1f} s", f"{run.cpu_seconds:.1f} s", format_size(run.peak_bytes))
        )
        figures.append({"step": what, "seconds": run.seconds, "cpu": run.cpu_seconds, "bytes": run.peak_bytes})
        figures[-1] |= {"command": typed, "said": run.output}
        sys.stderr.write(f"{align(rows[-1:])[0]}\n")
    (folder / "afternoon.json").write_text(json.dumps(figures, indent=1))
    wait = sum(each["seconds"] for each in figures)
    rows.append(("all", f"{len(figures)} commands", f"{wait / 60:.1f} min", "", ""))
    sys.stdout.write("".join(f"{line}\n" for line in align(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
