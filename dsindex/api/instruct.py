"""`dsindex.instruct`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsindex.api.boundary import (
    OptionsError,
    api_function,
    given_options,
    join_connected_cluster,
    list_given_paths,
    name_type,
)
from dsindex.api.progress import open_reporter
from dsindex.api.results import InstructResult, fields_of
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.instruction.config import InstructionConfig
from dsindex.jobs.instruct import join_job, run_instruct
from dsindex.store.config_files import read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dsindex.api.progress import Progress
    from dsindex.api.tokenizers import TokenizerLike
    from dsindex.options.instruct import ExportKind


@api_function
def instruct(
    input: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | InstructionConfig,
    input_list: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None,
    input_split: str | None = None,
    input_format: Literal["auto", "jsonl", "lines", "document", "csv", "tsv"] | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
    tokenizer: TokenizerLike | None = None,
    output_prefix: str | os.PathLike[str] | None = None,
    engine: Literal["auto", "gigatoken", "reference", "tokenizers"] | None = None,
    seq_length: int | None = None,
    split: str | Sequence[float] | None = None,
    split_seed: int | None = None,
    export: ExportKind | Sequence[ExportKind] | None = None,
    on_bad_record: Literal["fail", "quarantine"] | None = None,
    on_bad_input: Literal["fail", "skip-file"] | None = None,
    max_bad_records: int | str | None = None,
    max_record_size: int | str | None = None,
    shard_size: int | str | None = None,
    no_provenance: bool | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_shards: bool | None = None,
    fresh: bool | None = None,
    executor: Literal["auto", "local", "processes", "ray"] | None = None,
    address: str | None = None,
    installed: bool | None = None,
    workers: int | None = None,
    shard_deadline: float | None = None,
    progress: Progress = False,
) -> InstructResult:
    """Turn conversations into tokens, loss masks and packed blocks, as `dsindex instruct` does.

    An option that is None is taken from the section `job` of `config`, or else is the command line's default.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        input_list: Files that list inputs, one path per line, which come after `input`.
        input_split: The split to take from a folder that has several; `all` for every split.
        input_format: What the inputs hold that are not Parquet or Arrow: JSON lines, plain text with a document per
            line or per file, or CSV; `auto` goes by their names.
        endpoint_url: Server of `s3://` inputs; `AWS_ENDPOINT_URL` or Amazon's own if None.
        region: Region of `s3://` inputs; `AWS_REGION` or us-east-1 if None.
        config: How records become prompts and which parts are trainable: a YAML file, or a dict of the same content.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`, which has no chat
            template.
        output_prefix: Outputs are named `PREFIX_text_document.*`, `PREFIX_loss_mask.*`, and so on.
        engine: Tokenizer engine; `auto` uses gigatoken if it returns the same tokens and masks.
        seq_length: Pack conversations into blocks of this many tokens; also `max_length` if `config` has none.
        split: Shares of train, valid and test, decided by a hash of each conversation's content.
        split_seed: Seed of that hash.
        export: Formats of other trainers to write as well: `hf`, `hf-disk`, `bridge`, `sft`.
        on_bad_record: Stop at the first bad record, or quarantine bad records.
        on_bad_input: Whether a damaged input ends the job or is left out as a whole.
        max_bad_records: Stop if more are quarantined: a number, or a share such as "0.1%".
        max_record_size: A longer line is a bad record.
        shard_size: Bytes of input per shard.
        no_provenance: Do not record provenance.
        work_dir: Work folder; `PREFIX.build` if None.
        keep_shards: Keep the work folder after success.
        fresh: Start over; the old output is replaced when the new one is complete.
        executor: As for `build`, with processes instead of threads if there is much text.
        address: The Ray cluster to join.
        installed: Do not send this process's code to the cluster's nodes; they have dsindex installed.
        workers: Number of concurrent tasks; all CPUs if None.
        shard_deadline: Seconds after which a task that is still running gets a second attempt.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If `config` cannot be read or is not a valid configuration.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    flags = given_options(instruct, locals())
    del flags["config"]
    list_given_paths(flags, "input", "input_list")
    settings, source, folder = _read_settings(config)
    with tokenizer_in_place(flags) as placed:
        job, instruction = join_job(settings, placed, source=source, folder=folder)
        if job.executor == "auto" and job.address is None:
            job = job.model_copy(update=join_connected_cluster({}))
        with open_reporter(progress) as reporter:
            return InstructResult(**fields_of(run_instruct(job, instruction, reporter=reporter)))


def _read_settings(config: object) -> tuple[Mapping[str, Any], str, Path]:
    """Return a configuration as parsed YAML, its name for messages, and the folder that its paths are relative to.

    Raises:
        InputError: If it is a file that cannot be read.
        OptionsError: If it is neither a path, a mapping nor an InstructionConfig.
    """
    if isinstance(config, InstructionConfig):
        return config.model_dump(exclude_unset=True), "config", Path.cwd()
    if isinstance(config, str | os.PathLike):
        path = Path(os.fsdecode(config))
        return read_yaml(str(path)), str(path), path.parent
    if isinstance(config, Mapping):
        return config, "config", Path.cwd()
    msg = f"config: expected the path of a YAML file or a dict, got {name_type(config)}"
    raise OptionsError(msg)
