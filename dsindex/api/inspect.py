"""`dsindex.inspect` and `dsindex.trace`: what datasets and index caches hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsindex.api.boundary import api_function
from dsindex.api.subjects import find_prefix, list_prefixes
from dsindex.api.tokenizers import tokenizer_in_place
from dsindex.api.verify import find_folder
from dsindex.jobs.index import IndexResult
from dsindex.options.config import JsonOutput, validated
from dsindex.options.datasets import InspectConfig, TraceConfig
from dsindex.tools.inspect import run_inspect
from dsindex.tools.trace import run_trace

if TYPE_CHECKING:
    import os

    from dsindex.api.subjects import Subject, Subjects
    from dsindex.api.tokenizers import TokenizerLike
    from dsindex.tools.results import InspectResult, TraceResult

_LEFT_OUT = {*JsonOutput.model_fields}


@api_function(InspectConfig, leave_out=_LEFT_OUT)
def inspect(
    path: Subject | IndexResult,
    *,
    tokenizer: TokenizerLike | None = None,
    data_path: Subjects | None = None,
    **options: Any,  # noqa: ANN401 - those of InspectConfig
) -> InspectResult:
    """Look into a dataset, an index cache, an export or a work folder, as `dsindex inspect` does.

    Damage raises no exception: `findings` has it, in sentences, and `ok` is false.

    Args:
        path: A prefix, one of a dataset's files, a folder, or a result.
        tokenizer: Shows the text of tokens; that in the manifest if None.
        data_path: The datasets of an index cache, in the order of the blend, if they moved.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If there is nothing that dsindex knows, or no such document or sample.
    """
    options["path"] = _place("path", path)
    options |= {} if data_path is None else {"data_path": tuple(list_prefixes("data_path", data_path))}
    with tokenizer_in_place(options, tokenizer) as placed:
        return run_inspect(validated(placed, InspectConfig))


@api_function(TraceConfig, leave_out=_LEFT_OUT)
def trace(
    cache: str | os.PathLike[str] | IndexResult,
    *,
    tokenizer: TokenizerLike | None = None,
    prefix: Subjects | None = None,
    **options: Any,  # noqa: ANN401 - those of TraceConfig
) -> TraceResult:
    """Trace samples and steps to documents and lines, or lines to samples and steps, as `dsindex trace` does.

    Args:
        cache: The folder of index caches, the description of one, packs, or the result of `build_index`.
        tokenizer: Shows the text of tokens; that in each manifest if None.
        prefix: The datasets, in the order of the blend, if they moved.

    Returns:
        TracedSamples for `sample` and `step`, TracedDocuments for `document` and `line`, ConsumedTokens for `consumed`.

    Raises:
        OptionsError: If the options are invalid.
        InputError: If there is no such sample, document or line.
        FormatError: If the cache, a manifest or provenance is damaged.
    """
    options["cache"] = _place("cache", cache)
    options |= {} if prefix is None else {"prefix": tuple(list_prefixes("prefix", prefix))}
    with tokenizer_in_place(options, tokenizer) as placed:
        return run_trace(validated(placed, TraceConfig))


def _place(option: str, subject: Subject | IndexResult) -> str:
    """Return the folder of index caches, or the path of a dataset."""
    return find_folder(option, subject) if isinstance(subject, IndexResult) else find_prefix(option, subject)
