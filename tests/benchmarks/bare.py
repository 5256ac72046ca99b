"""The bare engines, as a program of their own: encode a file's texts and nothing else.

    python -m tests.benchmarks.bare FILE --tokenizer FOLDER --engine gigatoken|tokenizers --threads N

Texts are parsed before the clock starts and stay in memory, and ids are counted and dropped. gigatoken gets blocks of
4 MiB in each of N threads with an object of its own, as the build gives them; tokenizers gets encode_batch of 2,000
texts with its own threads. Prints JSON: seconds, CPU seconds, tokens, text bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

BLOCK_BYTES = 4 << 20
BATCH_TEXTS = 2_000


def main() -> None:
    """Encode, timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--engine", choices=["gigatoken", "tokenizers"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    blocks = read_texts(options.file)
    model = options.tokenizer / "tokenizer.json" if options.tokenizer.is_dir() else options.tokenizer
    encode = encode_with_gigatoken if options.engine == "gigatoken" else encode_with_tokenizers
    seconds, cpu_seconds, tokens = encode(blocks, model, options.threads)
    text_bytes = sum(int(np.frombuffer(block.buffers()[1], np.int64)[-1]) for block in blocks)
    found = {"seconds": seconds, "cpu_seconds": cpu_seconds, "tokens": tokens, "text_bytes": text_bytes}
    sys.stdout.write(json.dumps(found) + "\n")


def read_texts(path: Path) -> list[pa.LargeStringArray]:
    """Parse the records' `text`, a block of whole lines at a time."""
    blocks = []
    schema = pa.schema({"text": pa.large_string()})
    with path.open("rb") as file:
        while data := file.read(BLOCK_BYTES):
            data += file.readline()
            table = pyarrow.json.read_json(
                pa.BufferReader(data),
                read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            blocks.append(table.column("text").chunk(0))
    return blocks


def encode_with_gigatoken(blocks: list[Any], model: Path, threads: int) -> tuple[float, float, int]:
    """Encode blocks in threads that each have an object of their own."""
    import awkward as ak
    import gigatoken

    document = model.read_text(encoding="utf-8")
    encoders = [gigatoken.Tokenizer.from_json(document) for _ in range(threads)]
    arrays = []
    for block in blocks:
        _, ends, data = block.buffers()
        content = ak.contents.NumpyArray(np.frombuffer(data, np.uint8), parameters={"__array__": "char"})
        offsets = ak.index.Index64(np.frombuffer(ends, np.int64))
        arrays.append(ak.Array(ak.contents.ListOffsetArray(offsets, content, parameters={"__array__": "string"})))
    todo, lock, counts = iter(arrays), threading.Lock(), [0] * threads

    def work(number: int) -> None:
        while True:
            with lock:
                array = next(todo, None)
            if array is None:
                return
            counts[number] += int(encoders[number].encode_batch(array, parallel=False).layout.offsets.data[-1])

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    began, cpu_began = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - began, time.process_time() - cpu_began, sum(counts)


def encode_with_tokenizers(blocks: list[Any], model: Path, _threads: int) -> tuple[float, float, int]:
    """Encode lists of strings with the library's own threads: one for each CPU."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(model))
    texts = [text for block in blocks for text in block.to_pylist()]
    began, cpu_began = time.perf_counter(), time.process_time()
    tokens = 0
    for begin in range(0, len(texts), BATCH_TEXTS):
        tokens += sum(len(encoding.ids) for encoding in loaded.encode_batch(texts[begin : begin + BATCH_TEXTS]))
    return time.perf_counter() - began, time.process_time() - cpu_began, tokens


if __name__ == "__main__":
    main()
