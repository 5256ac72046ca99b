"""`dsindex.instruct`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import (
    OptionsError,
    api_function,
    input_options,
    join_connected_cluster,
    name_type,
    plain_value,
)
from dsindex.api.progress import open_reporter
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.instruction.config import InstructionConfig
from dsindex.jobs.instruct import InstructResult, join_job, run_instruct
from dsindex.options.instruct import InstructConfig
from dsindex.store.config_files import read_yaml

if TYPE_CHECKING:
    from dsindex.api.boundary import Paths
    from dsindex.api.progress import Progress
    from dsindex.api.tokenizers import TokenizerLike


@api_function(InstructConfig, defaults=False)
def instruct(
    input: Paths | None = None,
    *,
    config: str | os.PathLike[str] | Mapping[str, Any] | InstructionConfig,
    tokenizer: TokenizerLike | None = None,
    output_prefix: str | os.PathLike[str] | None = None,
    progress: Progress = False,
    **options: Any,  # noqa: ANN401 - those of InstructConfig
) -> InstructResult:
    """Turn conversations into tokens, loss masks and packed blocks, as `dsindex instruct` does.

    An option that is None is taken from the section `job` of `config`, or else is the command line's default.

    Args:
        input: Files (JSONL, compressed or not, tables), patterns or folders, in the order of the output, also
            addresses in object stores; `-` is standard input.
        config: How records become prompts and which parts are trainable: a YAML file, or a dict of the same content.
        tokenizer: The folder of a tokenizer, its tokenizer.json, or a `tokenizers.Tokenizer`, which has no chat
            template.
        output_prefix: Outputs are named `PREFIX_text_document.*`, `PREFIX_loss_mask.*`, and so on.
        progress: As for `build`.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If `config` cannot be read or is not a valid configuration.
        DsindexError: If the job cannot be done as asked; final names then never refer to incomplete files.
    """
    settings, source, folder = _read_settings(config)
    if output_prefix is not None:
        options["output_prefix"] = plain_value(output_prefix)
    with tokenizer_in_place(input_options(options, input), tokenizer) as placed:
        job, instruction = join_job(settings, placed, source=source, folder=folder)
        if job.executor == "auto" and job.address is None:
            job = job.model_copy(update=join_connected_cluster({}))
        with open_reporter(progress) as reporter:
            return run_instruct(job, instruction, reporter=reporter)


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
    raise OptionsError(f"config: expected the path of a YAML file or a dict, got {name_type(config)}")
