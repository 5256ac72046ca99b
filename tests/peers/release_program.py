"""Runs inside one release of Megatron-LM: `python release_program.py < jobs`, with its checkout in PYTHONPATH.

For each job, given as the flags of pretrain_gpt.py, this does what the release does until its datasets are there, and
tells the numbers of samples, the tokenizer's identifiers and the first samples of each split. No tokenizer is loaded.
"""

import hashlib
import json
import logging
import os
import sys
import typing
import warnings

import typing_extensions

if not hasattr(typing, "override"):  # written for Python 3.12
    typing.override = typing_extensions.override
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
OUTPUT = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Megatron prints is no answer

MODEL = [
    *("--num-layers", "1", "--hidden-size", "16", "--num-attention-heads", "1", "--max-position-embeddings", "4096"),
    *("--lr", "1e-4", "--micro-batch-size", "1"),
]


def load():
    """Import what is asked of the release, and replace what would load a tokenizer or need a GPU."""
    import torch
    from megatron.core.tokenizers.text.text_tokenizer import MegatronTokenizerText
    from megatron.training import training

    library = type("Library", (), {"vocab_size": 100, "eod": 0, "pad_id": -1, "chat_template": None})
    MegatronTokenizerText._restore_model = lambda _self, **_options: library()
    training.print_rank_0 = lambda *_words: None
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def build_tokenizer(args):
    try:
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer as build
    except ImportError:
        from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer as build
    return build(args)


def counts(args):
    """Return the samples that the job requests, in each of its phases."""
    from megatron.core import num_microbatches_calculator as calculator
    from megatron.training import training

    calculator._GLOBAL_NUM_MICROBATCHES_CALCULATOR = None
    names = ("rampup_batch_size", "global_batch_size", "micro_batch_size", "data_parallel_size")
    options = {"rank": 1, "decrease_batch_size_if_needed": False, **{name: getattr(args, name) for name in names}}
    if getattr(args, "step_batch_size_schedule", None) is not None:
        options |= {"step_batch_size_schedule": args.step_batch_size_schedule, "seq_length": args.seq_length}
    calculator.init_num_microbatches_calculator(**options)
    training.get_args = lambda: args
    training.update_train_iters(args)
    sizes = []
    for iteration in [0, *(args.phase_transition_iterations or ())]:
        args.iteration = iteration
        if not sizes or iteration * args.global_batch_size < args.train_samples:
            sizes.append(training.get_train_valid_test_num_samples())
    return sizes


def build(args, sizes):
    """Build the datasets of a job as its pretrain_gpt.py does."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.training.utils import get_blend_and_blend_per_split

    blend, blend_per_split = get_blend_and_blend_per_split(args)
    names = ("split", "multiple_validation_sets", "full_validation", "mid_level_dataset_surplus")
    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=blend,
        blend_per_split=blend_per_split,
        path_to_cache=args.data_cache_path,
        tokenizer=build_tokenizer(args),
        **{name: getattr(args, name) for name in names},
        **dict.fromkeys(masks, False),
    )
    kind = GPTDataset
    if args.fim_data:  # the same indices under another name; its own samples need a real tokenizer
        kind = type("GPTFIMDataset", (GPTDataset,), {})
    return list(BlendedMegatronDatasetBuilder(kind, list(sizes), lambda: True, config).build())


def digests(dataset):
    """Return a digest of each of the first samples' tokens."""
    if dataset is None:
        return None
    if isinstance(dataset, list):
        return [digests(part) for part in dataset]
    samples = [dataset[number]["tokens"].numpy() for number in range(min(8, len(dataset)))]
    return [len(dataset), [hashlib.md5(sample.tobytes(), usedforsecurity=False).hexdigest() for sample in samples]]


def answer(job):
    from megatron.training.arguments import parse_args, validate_args

    os.chdir(job["folder"])
    sys.argv = ["pretrain_gpt.py", *MODEL, *job["flags"]]
    args = parse_args()
    args.rank, args.world_size = 0, 1
    validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
    args.rank = 1  # it says less
    sizes = counts(args)
    identifiers = build_tokenizer(args).unique_identifiers
    built = [[digests(dataset) for dataset in build(args, phase_sizes)] for phase_sizes in sizes]
    return {"sizes": sizes, "identifiers": identifiers, "splits": built}


def main():
    load()
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a job that Megatron refuses is an answer
            reply = {"stops": f"{type(error).__name__}: {error}"[:300]}
        OUTPUT.write(json.dumps(reply) + "\n")
        OUTPUT.flush()


if __name__ == "__main__":
    main()
