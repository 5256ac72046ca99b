"""A dataset's source as its manifest records it, found again here, and compared with the dataset on any executor."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dsindex.errors import InputError, TokenizerError
from dsindex.shards import fingerprint_input
from dsindex.text.tokenizer import load_tokenizer
from dsindex.verify.source import (
    Difference,
    RecordCounts,
    SourceInput,
    SourceRange,
    SourceResult,
    SourceSettings,
    choose_ranges,
    compare_range,
    compare_slice,
    count_records,
    lay_out_range,
    plan_slices,
)
from workflows.config import ExecutorConfig
from workflows.dispatch import run_calls
from workflows.executors import Call
from workflows.publishing import PROVENANCE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.text.tokenizer import Tokenizer
    from workflows.executors import Executor
    from workflows.manifest import Content, RecordedInput
    from workflows.progress import Reporter

RANGE_BYTES = 16 << 20
"""Of an input, where there is no provenance to find documents by."""
RANGES_PER_SLOT = 8
"""Ranges that are dispatched before their results are taken in order."""


class SourceConfig(ExecutorConfig):
    """How a job finds the source of a dataset that is there already."""

    tokenizer_model: str | None = None
    """Where the tokenizer is; None: where the manifest says, if that is a path."""
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource:
    """The inputs, the tokenizer and the options that a dataset was made with."""

    settings: SourceSettings
    findings: tuple[str, ...]
    """Inputs that are not what they were."""

    def without_provenance(self) -> RecordedSource:
        """Give the source as if there were no provenance, where that is damaged."""
        return replace(self, settings=replace(self.settings, provenance=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceComparison:
    """How a comparison ended."""

    documents: int
    """Compared."""
    findings: tuple[str, ...]


def open_recorded_source(
    prefix: str, content: Content | None, manifest: dict[str, Any], config: SourceConfig
) -> RecordedSource:
    """Find what a dataset was made of.

    Raises:
        InputError: If there is no manifest, or the dataset was not made from text.
        TokenizerError: If the tokenizer is not there, or is another one.
    """
    from dsindex.text.engines import choose_engine

    recorded = content.tokenizer if content is not None else None
    if content is None or recorded is None or content.options.json_key is None:
        msg = (
            f"{prefix}: expected the manifest of a build, which names inputs and tokenizer, and there is none; "
            f"the dataset cannot be compared with its source (a merged one: compare the datasets it was made of)"
        )
        raise InputError(msg)
    options = content.options
    tokenizer = _load_recorded(recorded.name, recorded.sha256, config.tokenizer_model)
    provenance = f"{prefix}.{PROVENANCE_SUFFIX}"
    inputs, findings = _find_inputs(content.inputs, manifest)
    settings = SourceSettings(
        prefix=prefix,
        inputs=inputs,
        key=content.options.json_key,
        tokenizer=tokenizer,
        engine=choose_engine(
            tokenizer, config.engine, add_special_tokens=not options.tokenizer_hf_no_include_special_tokens
        ),
        dtype=content.token_dtype,
        eod_id=content.eod_id,
        max_record_bytes=options.max_record_size,
        quarantine=options.on_bad_record == "quarantine",
        provenance=provenance if os.path.isfile(provenance) else None,
    )
    return RecordedSource(settings=settings, findings=tuple(findings))


def _load_recorded(name: str, sha256: str, given: str | None) -> Tokenizer:
    """Load the tokenizer that the manifest names, from where the user says it is."""
    if given is None and not os.path.exists(name):
        msg = (
            f"expected the tokenizer {name!r} (sha256 {sha256[:16]}…) that the dataset was made with, and the manifest "
            f"does not say where it is; give its path with --tokenizer-model"
        )
        raise TokenizerError(msg)
    path = given if given is not None else name
    tokenizer = load_tokenizer(path)
    if tokenizer.sha256 != sha256:
        msg = (
            f"{path}: expected the tokenizer with sha256 {sha256} that the dataset was made with, "
            f"got {tokenizer.sha256}; give that one with --tokenizer-model"
        )
        raise TokenizerError(msg)
    return tokenizer


def _find_inputs(
    recorded: Sequence[RecordedInput], manifest: dict[str, Any]
) -> tuple[tuple[SourceInput, ...], list[str]]:
    """Find the inputs, by the path that was given or else by the absolute one, and see whether they changed."""
    absolute = [entry[0] for entry in manifest.get("run", {}).get("plan", {}).get("inputs", [])]
    inputs, findings = [], []
    for number, file in enumerate(recorded):
        path = file.path
        if not os.path.isfile(path) and number < len(absolute):
            path = absolute[number]
        try:
            size_bytes = os.path.getsize(path)
            fingerprint = fingerprint_input(path)
        except OSError as error:
            findings.append(f"{path}: cannot be read ({error.strerror}); the dataset was made of it, put it back")
            continue
        if size_bytes != file.size_bytes or fingerprint != file.fingerprint:
            findings.append(
                f"{path}: expected the input of {file.size_bytes} bytes with fingerprint {file.fingerprint} as in the "
                f"manifest, got {size_bytes} bytes with {fingerprint}; it changed, put the former one back"
            )
        inputs.append(SourceInput(path=path, size_bytes=size_bytes))
    return tuple(inputs), findings


def compare_with_source(
    source: RecordedSource,
    *,
    num_documents: int,
    share: float,
    executor: Executor,
    reporter: Reporter,
) -> SourceComparison:
    """Tokenize again and find the first document that differs.

    Args:
        source: What `open_recorded_source` found, without findings.
        num_documents: Of the dataset.
        share: Of the documents to compare, in (0, 1], chosen by a hash of their numbers.
        executor: Where to run.
        reporter: Is told how it goes.
    """
    settings = source.settings
    shared = executor.share(settings)
    if settings.provenance is not None:
        slices = plan_slices(num_documents, share)
        results = _run(executor, reporter, "compare", compare_slice, slices, shared)
        missing: list[str] = []
    else:
        ranges, kept = number_ranges(settings, executor=executor, reporter=reporter)
        results = _run(executor, reporter, "compare", compare_range, choose_ranges(ranges, share), shared)
        missing = []
        if kept != num_documents:
            missing.append(
                f"{settings.prefix}: expected a document for each of {kept} records of the inputs, "
                f"got {num_documents}; build it again with --fresh"
            )
    return SourceComparison(
        documents=sum(result.documents for result in results), findings=(*_first_difference(results), *missing)
    )


def _first_difference(results: Sequence[SourceResult]) -> list[str]:
    """Name the first document that differs, and say in how many pieces others do."""
    differences: list[Difference] = [result.difference for result in results if result.difference is not None]
    if not differences:
        return []
    first = min(differences, key=lambda difference: difference.document)
    others = len(differences) - 1
    return [first.sentence + (f" (and {others} other pieces differ as well)" if others else "")]


def plan_ranges(settings: SourceSettings) -> list[SourceRange]:
    """Cut all inputs into ranges, whose first documents and lines are not known yet."""
    return [
        SourceRange(
            input=number,
            begin=begin,
            end=min(begin + RANGE_BYTES, file.size_bytes),
            first_document=0,
            first_line=1,
        )
        for number, file in enumerate(settings.inputs)
        for begin in range(0, file.size_bytes, RANGE_BYTES)
    ]


def number_ranges(settings: SourceSettings, *, executor: Executor, reporter: Reporter) -> tuple[list[SourceRange], int]:
    """Count the records of all ranges; give the ranges with their first documents and lines, and all records kept."""
    ranges = plan_ranges(settings)
    counts: list[RecordCounts] = _run(executor, reporter, "count", count_records, ranges, executor.share(settings))
    numbered = []
    document, line, before = 0, 1, 0
    for piece, count in zip(ranges, counts, strict=True):
        line = line if piece.input == before else 1
        numbered.append(replace(piece, first_document=document, first_line=line))
        document, line, before = document + count.kept, line + count.lines, piece.input
    return numbered, document


def lay_out_source(
    settings: SourceSettings, *, executor: Executor
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Tokenize all inputs again and give what an index is made of, in order, some ranges at a time.

    Returns:
        Tokens of each sequence, and sequences of each document, a range at a time.
    """
    shared = executor.share(settings)
    ranges = plan_ranges(settings)
    group = RANGES_PER_SLOT * executor.slots
    for begin in range(0, len(ranges), group):
        results: dict[int, Any] = {}
        calls = [
            (
                number,
                Call(
                    name=f"tokenize[{number}]", place=settings.prefix, function=lay_out_range, arguments=(piece, shared)
                ),
            )
            for number, piece in enumerate(ranges[begin : begin + group], begin)
        ]
        run_calls(executor, calls, on_result=results.__setitem__)
        for number, _ in calls:
            yield results.pop(number)


def _run(
    executor: Executor,
    reporter: Reporter,
    name: str,
    function: Callable[..., Any],
    pieces: Sequence[Any],
    shared: object,
) -> list[Any]:
    """Run a function on every piece and give the results in order."""
    reporter.stage(name, total=len(pieces), unit="pieces")
    results: dict[int, Any] = {}

    def on_result(number: int, value: Any) -> None:  # noqa: ANN401 - what the function gives
        results[number] = value
        reporter.advance(1)

    calls = (
        (number, Call(name=f"{name}[{number}]", place=f"piece {number}", function=function, arguments=(piece, shared)))
        for number, piece in enumerate(pieces)
    )
    run_calls(executor, calls, on_result=on_result, on_idle=reporter.tick)
    return [results[number] for number in range(len(pieces))]
