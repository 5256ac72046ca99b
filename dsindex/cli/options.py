"""Flags that several commands share, and options read from flags and a YAML file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.execution.progress.standard_streams import show_lines
from dsindex.options.config import Options, UsageError, validated
from dsindex.options.megatron_flags import take_megatron_flags
from dsindex.store.config_files import option_names, read_yaml
from dsindex.text.conversion.tiktoken import FAMILIES

if TYPE_CHECKING:
    import argparse

Config = TypeVar("Config", bound=Options)


def add_executor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that runs tasks."""
    where = parser.add_argument_group("execution")
    where.add_argument(
        "--executor",
        choices=["auto", "local", "processes", "ray"],
        help="auto is Ray if --address names a cluster, or RAY_ADDRESS for a job with a work folder, else threads of "
        "this process (default: auto)",
    )
    where.add_argument("--address", metavar="A", help="the Ray cluster to join: HOST:6379, or auto for this machine's")
    where.add_argument(
        "--installed",
        action="store_true",
        default=None,
        help="dsindex is installed on the cluster's nodes: do not send them this node's code",
    )
    where.add_argument("--workers", type=int, metavar="N", help="tasks that run at once (default: all CPUs)")
    where.add_argument(
        "--shard-deadline",
        type=float,
        metavar="SECONDS",
        help="start a second attempt at slower tasks (default: 8 times the median of finished tasks, at least 60)",
    )


def add_work_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that works in a work folder."""
    add_executor_arguments(parser)
    work = parser.add_argument_group("work folder")
    work.add_argument("--work-dir", metavar="D", help="the folder of shards and ledger (default: PREFIX.build)")
    work.add_argument("--keep-shards", action="store_true", default=None, help="keep the work folder after success")
    work.add_argument(
        "--fresh",
        action="store_true",
        default=None,
        help="start over; an old output is replaced once the new one is complete",
    )
    work.add_argument(
        "--log-json", action="store_true", default=None, help="write progress and errors as one JSON object per line"
    )


def add_input_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the options that name the inputs of a job that reads records."""
    group.add_argument(
        "--input",
        nargs="+",
        metavar="PATH",
        help="files, patterns or folders, in the order of the output: JSONL, compressed or not, Parquet, Arrow or CSV; "
        "here or in object stores (s3://, gs://, az://, https://); - is standard input",
    )
    add_store_options(group)
    group.add_argument(
        "--input-list",
        nargs="+",
        metavar="FILE",
        help="files that list inputs, one path per line, read after --input; - reads a list from standard input",
    )
    group.add_argument(
        "--input-split",
        metavar="NAME",
        help="the split to take from a folder that has several, such as train; all takes every split",
    )
    group.add_argument(
        "--input-format",
        choices=["auto", "jsonl", "lines", "document", "csv", "tsv"],
        help="what the inputs hold: JSON lines, plain text with a document per line or per file, or CSV; Parquet and "
        "Arrow, and compression, are told by content (default: auto, by the file's name)",
    )


def add_store_options(group: argparse._ArgumentGroup) -> None:
    """Add the options that tell how the stores of addresses are reached."""
    group.add_argument(
        "--endpoint-url",
        metavar="URL",
        help="server of s3:// addresses, such as MinIO's (default: AWS_ENDPOINT_URL, or Amazon's own)",
    )
    group.add_argument("--region", metavar="NAME", help="region of s3:// addresses (default: AWS_REGION, or us-east-1)")


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of every job that tokenizes text, except input and output."""
    text = parser.add_argument_group("tokenizer")
    text.add_argument(
        "--tokenizer-model",
        metavar="PATH",
        help="a tokenizer.json or a folder with one, a SentencePiece .model, a file of tiktoken's, or a name in the "
        "Hugging Face cache or hub such as gpt2 or ORG/NAME@REVISION",
    )
    text.add_argument("--eod-token", metavar="T", help="the EOD token (default: the tokenizer folder's eos_token)")
    text.add_argument(
        "--tokenizer-hf-no-include-special-tokens",
        action="store_true",
        default=None,
        help="do not run the tokenizer's post-processor, which may add a BOS to every text",
    )
    text.add_argument(
        "--engine",
        choices=["auto", "gigatoken", "reference", "tokenizers"],
        help="the library that encodes; auto is gigatoken where it returns the same tokens, else the "
        "reference: the library of the tokenizer's own format (default: auto)",
    )
    add_record_arguments(parser)


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a tokenizer's file does not, named as Megatron's."""
    formats = parser.add_argument_group("tokenizer formats")
    formats.add_argument(
        "--tokenizer-type", metavar="TYPE", help="Megatron's name of the kind of tokenizer, checked against the file"
    )
    formats.add_argument("--vocab-file", metavar="PATH", help="vocab.json of a GPT2BPETokenizer")
    formats.add_argument("--merge-file", metavar="PATH", help="merges.txt of a GPT2BPETokenizer")
    formats.add_argument(
        "--tiktoken-encoding",
        metavar="NAME",
        help=f"pattern and special tokens of a tiktoken file whose name does not say them: {', '.join(FAMILIES)}",
    )
    formats.add_argument("--tiktoken-pattern", choices=["v1", "v2"], help="pattern of a TikTokenizer (default: v2)")
    formats.add_argument(
        "--tiktoken-num-special-tokens", type=int, metavar="N", help="special tokens of a TikTokenizer (default: 1000)"
    )
    formats.add_argument(
        "--vocab-size", type=int, metavar="N", help="vocabulary of a TikTokenizer with its special tokens "
        "(default: 131072)"
    )  # fmt: skip
    formats.add_argument(
        "--tokenizer-special-tokens", nargs="+", metavar="T", help="the first special tokens of a TikTokenizer"
    )


def add_record_arguments(parser: argparse.ArgumentParser, *, largest_shard: str = "64MiB") -> None:
    """Add the options of every job that reads records: bad records, the work folder, shards."""
    records = parser.add_argument_group("records")
    records.add_argument(
        "--on-bad-record",
        choices=["fail", "quarantine"],
        help="stop at the first bad record, or set bad records aside with file, line and reason (default: fail)",
    )
    records.add_argument(
        "--on-bad-input",
        choices=["fail", "skip-file"],
        help="stop at a compressed file or table that is damaged or cut off, or leave out such files as a whole, which "
        "reads all of them twice (default: fail)",
    )
    records.add_argument("--max-bad-records", metavar="N|N%", help="stop when more are set aside")
    records.add_argument("--max-record-size", metavar="SIZE", help="treat longer lines as bad records")
    add_work_arguments(parser)
    parser.add_argument(
        "--shard-size",
        metavar="SIZE",
        help=f"bytes of input per shard (default: by the size of the inputs, at most {largest_shard})",
    )
    parser.add_argument(
        "--no-provenance", action="store_true", default=None, help="do not record where documents came from"
    )


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument("--config", metavar="FILE.yaml", help="read options from this file; flags override it")


NOT_OPTIONS = frozenset({"config", "debug"})


def read_options(options: argparse.Namespace) -> dict[str, Any]:
    """Read a configuration file, if one is named, and override it with flags.

    Raises:
        InputError: If the file cannot be read, or is not a configuration.
    """
    path = getattr(options, "config", None)
    merged = option_names(read_yaml(path), source=path) if path else {}
    given = {name: value for name, value in vars(options).items() if name not in NOT_OPTIONS and value is not None}
    merged.update(given)
    if "log_json" in merged:
        options.log_json = merged["log_json"]  # decides how the command line reports an error
    return name_lists(merged)


def name_lists(options: dict[str, Any]) -> dict[str, Any]:
    """Return options with a list of one text where an option that takes a list has a text."""
    for name in ("input", "input_list", "json_keys", "repeat", "export"):
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    return options


def without_megatron_flags(merged: dict[str, Any]) -> dict[str, Any]:
    """Return options without those flags of Megatron's programs that have no effect, after a note that names them.

    Raises:
        UsageError: If one of them is refused.
    """
    remaining = dict(merged)
    try:
        note = take_megatron_flags(remaining)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if note is not None:
        sys.stderr.write(show_lines([f"dsindex: {note}"]))
    return remaining


def read_config(options: argparse.Namespace, kind: type[Config], *, beside: tuple[str, ...] = ()) -> Config:
    """Read a job's options from a file and flags; `beside` names flags that are not options of the job."""
    return validated({name: value for name, value in read_options(options).items() if name not in beside}, kind)
