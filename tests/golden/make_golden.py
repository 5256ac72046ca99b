"""Make the golden files of this folder with the real programs. README.md has the environment and the command.

docs.jsonl, sentences.jsonl and the tokenizers are the sources. Everything else here is written by Megatron-LM's
preprocess_data.py and merge_datasets.py, and by megatron-core; nothing of dsindex takes part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 600
# Output prefix, input, tokenizer, further options of preprocess_data.py.
RUNS = [
    ("eod", "docs.jsonl", "plain", ["--append-eod"]),
    ("noeod", "docs.jsonl", "plain", []),
    ("keys", "docs.jsonl", "plain", ["--json-keys", "text", "title", "--append-eod"]),
    ("sentences", "sentences.jsonl", "plain", ["--append-eod"]),
    ("bos", "docs.jsonl", "bos", ["--append-eod"]),
    ("nobos", "docs.jsonl", "bos", ["--append-eod", "--tokenizer-hf-no-include-special-tokens"]),
    ("bossentences", "sentences.jsonl", "bos", ["--append-eod"]),
]
MERGED = ["eod_text_document", "keys_title_document", "sentences_text_document"]
CASES = HERE / "gpt_index_cases.json"
"""Settings of each case and what megatron-core made of them: a new case is a line with its settings alone."""
MADE = ("lengths", "first_tokens", "first_labels", "files")
"""Keys of a case that this program writes."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", type=Path, required=True, help="checkout of Megatron-LM")
    megatron = parser.parse_args().megatron.resolve()
    for prefix, source, tokenizer, options in RUNS:
        files = ["--input", str(HERE / source), "--output-prefix", str(HERE / prefix), "--workers", "2"]
        model = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(HERE / "tokenizers" / tokenizer)]
        run_program(megatron / "tools" / "preprocess_data.py", files, model, options)
    merge(megatron)
    shutil.rmtree(HERE / "cache", ignore_errors=True)
    os.chdir(HERE)  # the description files hold the prefixes as they were given: relative
    cases = json.loads(CASES.read_text())
    settings = [{key: value for key, value in case.items() if key not in MADE} for case in cases]
    # One case per line: a changed case is a changed line.
    CASES.write_text("[\n" + ",\n".join(json.dumps(build_case(case)) for case in settings) + "\n]\n")


def run_program(program, *arguments):
    """Run one of Megatron-LM's tools with its own checkout ahead of an installed megatron-core."""
    environment = {**os.environ, "PYTHONPATH": str(program.parent.parent), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(program), *(argument for part in arguments for argument in part)]
    subprocess.run(command, env=environment, check=True, timeout=TIMEOUT_SECONDS)


def merge(megatron):
    """Merge three outputs; merge_datasets.py takes all pairs of a folder by name, so it gets links in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        for prefix in MERGED:
            for suffix in (".bin", ".idx"):
                (Path(folder) / (prefix + suffix)).symlink_to(HERE / (prefix + suffix))
        program = megatron / "tools" / "merge_datasets.py"
        run_program(program, ["--input", folder, "--output-prefix", str(HERE / "merged")])


class ExampleTokenizer:
    """What a GPTDataset asks of a tokenizer: identifiers for the description, and ids that no token has."""

    unique_identifiers: ClassVar = {"class": "example.Tokenizer", "tokenizer_path": ["plain"], "option": "1"}
    vocab_size = 800
    pad = -1
    eod = -2


def build_case(case):
    """Build one case's datasets with megatron-core, which writes its caches, and say what came out.

    The first tokens and the last labels are of the first five samples of the first split that has any.
    """
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    config = GPTDatasetConfig(
        random_seed=case["seed"], sequence_length=case["sequence_length"], split=case["split"],
        blend=(case["prefixes"], case.get("weights")), path_to_cache=f"cache/{case['name']}",
        tokenizer=ExampleTokenizer(), **dict.fromkeys(masks, False),
        add_extra_token_to_sequence=case.get("add_extra_token", True),
        drop_last_partial_validation_sequence=case.get("drop_last_partial_validation_sequence", True),
    )  # fmt: skip
    datasets = BlendedMegatronDatasetBuilder(GPTDataset, case["num_samples"], lambda: True, config).build()
    first = next(dataset for dataset in datasets if dataset is not None)
    samples = [first[i] for i in range(5)]
    return {
        **case,
        "lengths": [None if dataset is None else len(dataset) for dataset in datasets],
        "first_tokens": [sample["tokens"][:8].tolist() for sample in samples],
        "first_labels": [sample["labels"][-4:].tolist() for sample in samples],
        "files": sorted(path.name for path in Path("cache", case["name"]).iterdir()),
    }


if __name__ == "__main__":
    main()
