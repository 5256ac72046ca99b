"""The flags of `dsindex index`, under Megatron's names where Megatron has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workflows.options.index import DEFAULT_SPLIT
from workflows.options.index_tokenizer import add_job_tokenizer_arguments, add_release_argument

if TYPE_CHECKING:
    import argparse


def add_index_arguments(parser: argparse.ArgumentParser, *, paths: bool = True) -> None:
    """Add the flags that say which indices to build.

    Args:
        parser: The parser of `dsindex index`, or of a job that indexes its own output.
        paths: Whether to add the flags that name datasets.
    """
    if paths:
        _add_path_arguments(parser)
        add_job_tokenizer_arguments(parser)
    length = parser.add_argument_group("samples", "how long the job trains, in one of four ways")
    length.add_argument("--seq-length", type=int, metavar="L", help="the job's --seq-length: tokens per sample")
    length.add_argument(
        "--epochs",
        metavar="E",
        help="train on E epochs, fractions allowed, and valid and test on one; the number of samples is in the "
        "description",
    )
    length.add_argument(
        "--num-samples",
        metavar="N[,N,N]",
        help="samples of train, valid and test, as the job requests them; `none` or a missing number means one epoch",
    )
    length.add_argument("--train-iters", type=int, metavar="N", help="the job's training iterations")
    length.add_argument("--train-samples", type=int, metavar="N", help="the job's training samples")
    length.add_argument("--global-batch-size", type=int, metavar="N", help="samples per iteration")
    length.add_argument("--eval-interval", type=int, metavar="N", help="iterations between validations")
    length.add_argument("--eval-iters", type=int, metavar="N", help="iterations per validation (default: 100)")
    length.add_argument(
        "--full-validation", action="store_true", default=None, help="each validation is one epoch of valid"
    )
    _add_rare_length_arguments(length)
    order = parser.add_argument_group("order")
    order.add_argument(
        "--split",
        metavar="S",
        help=f"shares of train, valid and test, spelled as in the job (default: '{DEFAULT_SPLIT}')",
    )
    order.add_argument("--seed", type=int, metavar="N", help="the job's --seed (default: 1234)")
    order.add_argument(
        "--no-extra-token", action="store_true", default=None, help="samples of L tokens, not L + 1 (rare in Megatron)"
    )
    order.add_argument(
        "--keep-partial-validation", action="store_true", default=None, help="keep valid's last, partial sample"
    )
    order.add_argument(
        "--mid-level-dataset-surplus",
        type=float,
        metavar="X",
        help="the job's value, for weighted blends (default: 0.005)",
    )
    _add_name_arguments(parser)


def _add_rare_length_arguments(length: argparse._ArgumentGroup) -> None:
    """Add the job's other flags that change how many samples it requests."""
    length.add_argument(
        "--skip-train", action="store_true", default=None, help="the job only validates, once, as with its --skip-train"
    )
    length.add_argument("--start-eval-at-iter", type=int, metavar="N", help="the job validates from this iteration on")
    length.add_argument(
        "--eval-global-batch-size", type=int, metavar="N", help="samples per iteration of a validation, from 0.18 on"
    )
    length.add_argument(
        "--phase-transition-iterations",
        metavar="N,N",
        help="the job's phases: each has caches of its own samples, and all are built",
    )
    length.add_argument(
        "--rampup-batch-size",
        nargs=3,
        type=int,
        metavar=("FIRST", "STEP", "SAMPLES"),
        help="up to 0.17; later releases ignore it",
    )
    length.add_argument(
        "--step-batch-size-schedule",
        metavar="'0:N N:N'",
        help="from 0.18 on; with what the job prints as `setting global batch size to` as --global-batch-size",
    )


def _add_path_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("data", "prefixes are paths without .bin and .idx")
    data.add_argument(
        "--data-path",
        nargs="+",
        metavar="P",
        help="a prefix, or a blend: W1 P1 W2 P2 … with weights, P1 P2 … in proportion to the datasets' lengths",
    )
    for split in ("train", "valid", "test"):
        data.add_argument(f"--{split}-data-path", nargs="+", metavar="P", help=f"the same, for {split} alone")
    data.add_argument("--data-args-path", metavar="FILE", help="a file with the words of --data-path, as in the job")
    data.add_argument(
        "--per-split-data-args-path", metavar="FILE", help="a JSON file with the words for each split, as in the job"
    )
    data.add_argument(
        "--multiple-validation-sets",
        action="store_true",
        default=None,
        help="the datasets of --valid-data-path are no blend: each has the samples of valid, or all of its own",
    )
    data.add_argument(
        "--per-dataset-sequences-path",
        metavar="FILE.json",
        help="write the file that the job reads with this flag, for a faster start; --explain compares it",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        default=None,
        help="build nothing: show for each cache whether the job would find it, and if not, which settings differ",
    )
    parser.add_argument(
        "--check", action="store_true", default=None, help="build nothing: show what would be built, and its size"
    )


def _add_name_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_argument_group(
        "names", "Megatron finds a cache by a hash of its settings, so they must be spelled as in the job"
    )
    names.add_argument(
        "--data-cache-path", metavar="D", help="the job's cache folder (default: P/cache/GPTDataset_indices)"
    )
    add_release_argument(names)
    names.add_argument(
        "--tokenizer-identifiers",
        metavar="FILE.json",
        help="the tokenizer's `unique_identifiers` in the job's Megatron, a JSON object",
    )
    names.add_argument(
        "--like",
        metavar="DESCRIPTION.txt",
        help="take tokenizer, seed, sequence length and split from a description that the job wrote; flags override it",
    )
    names.add_argument(
        "--dataset-path-as",
        nargs="+",
        metavar="P",
        help="each prefix as the job types it, in the same order, or HERE=THERE to replace the beginning of all",
    )
    names.add_argument(
        "--dataset-class",
        choices=["GPTDataset", "GPTFIMDataset"],
        help="the job's class of datasets: GPTFIMDataset with --fim-data (default: GPTDataset)",
    )
    names.add_argument(
        "--fim-data",
        action="store_true",
        default=None,
        help="the same as --dataset-class GPTFIMDataset",
    )
    names.add_argument(
        "--layout",
        choices=["megatron", "bigscience"],
        help="Megatron-core's caches, or the files that BigScience's and OpenGPT-X's Megatron-DeepSpeed look for "
        "beside the data (default: megatron)",
    )
    names.add_argument(
        "--final-epoch-threshold",
        type=float,
        metavar="X",
        help="shuffle the final epoch separately if less than this share of it is used: 0.80 in Megatron and "
        "BigScience, 0.95 in OpenGPT-X (default: 0.80)",
    )
