"""Modalities' own work, for its environment; prints how long the call took, imports apart.

python modalities_peer.py index FILE.jsonl FILE.idx
python modalities_peer.py pack FILE.jsonl FILE.idx FILE.pbin TOKENIZER_FOLDER PROCESSES
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Index or pack with the classes that `modalities data create_raw_index` and `pack_encoded_data` call."""
    if sys.argv[1] == "index":
        from modalities.dataloader.create_index import IndexGenerator

        source, index = map(Path, sys.argv[2:])
        began = time.perf_counter()
        IndexGenerator(source).create_index(index)
    else:
        from modalities.dataloader.create_packed_data import PackedDataGenerator
        from modalities.tokenization.tokenizer_wrapper import PreTrainedHFTokenizer

        source, index, target = map(Path, sys.argv[2:5])
        tokenizer = PreTrainedHFTokenizer(sys.argv[5])
        began = time.perf_counter()
        PackedDataGenerator(
            source,
            index_path=index,
            tokenizer=tokenizer,
            eod_token="<|endoftext|>",
            jq_pattern=".text",
            number_of_processes=int(sys.argv[6]),
            processing_batch_size=1000,
            raw_samples_queue_size=300,
            processed_samples_queue_size=300,
        ).run(target)
    sys.stdout.write("\n" + json.dumps({"seconds": time.perf_counter() - began}) + "\n")


if __name__ == "__main__":
    main()
