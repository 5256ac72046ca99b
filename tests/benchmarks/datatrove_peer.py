"""datatrove's tokenization, for its environment: FOLDER of JSONL parts, OUTPUT folder, TOKENIZER; a task per part."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    parts, output, tokenizer = sys.argv[1:]
    model = Path(tokenizer)
    steps = [
        JsonlReader(parts, text_key="text"),
        DocumentTokenizer(
            output_folder=output,
            tokenizer_name_or_path=str(model / "tokenizer.json" if model.is_dir() else model),
            eos_token="<|endoftext|>",
            shuffle_documents=False,
        ),
    ]
    count = len(list(Path(parts).iterdir()))
    LocalPipelineExecutor(pipeline=steps, tasks=count, workers=count, logging_dir=f"{output}/logs").run()
