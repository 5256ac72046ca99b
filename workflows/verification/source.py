"""Find a dataset's source as recorded in its manifest, and tokenize it again on any executor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

from dsindex.checks.source import SourceInput, SourceRange, SourceSettings, lay_out_range
from dsindex.errors import InputError
from dsindex.objects.requests import MissingObjectError, StoreError
from dsindex.readable import input_status, is_stored, is_there
from dsindex.shards.inputs import fingerprint_input
from dsindex.text.forms import TextPart
from dsindex.text.parts import read_part
from dsindex.text.patterns import parse_text_pattern
from dsindex.text.record_blocks import TextColumn
from dsindex.text.selection import Selection, open_selection
from workflows.execution.calls import Call
from workflows.execution.ordered import run_in_order
from workflows.options.config import ExecutorConfig
from workflows.options.pack import PBIN_SUFFIX
from workflows.state.input_forms import detect_form, find_parts
from workflows.state.input_paths import STANDARD_INPUT
from workflows.state.object_spool import spooled_path
from workflows.state.publishing import PROVENANCE_SUFFIX
from workflows.verification.pbin_options import read_pbin_options
from workflows.verification.recorded_tokenizer import load_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from dsindex.formats.pbin import PbinHeader
    from dsindex.text.patterns import TextPattern
    from workflows.execution.calls import Executor
    from workflows.state.input_forms import InputFormat
    from workflows.state.manifest import Content, Manifest, RecordedInput

RANGE_BYTES = 16 << 20
"""Size of a range of an input, if there is no provenance through which documents are found."""


class SourceConfig(ExecutorConfig):
    """Options of a job that needs the source of an existing dataset."""

    tokenizer_model: str | None = None
    """Path of the tokenizer; None to use the path in the manifest."""
    engine: Literal["auto", "gigatoken", "reference", "tokenizers"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSource:
    """The inputs, tokenizer and options with which a dataset was made."""

    settings: SourceSettings
    findings: tuple[str, ...]
    """Sentences about inputs that are missing or changed."""

    def without_provenance(self) -> RecordedSource:
        """Return the source without its provenance, which is damaged."""
        return replace(self, settings=replace(self.settings, provenance=None))


def open_recorded_source(
    prefix: str,
    manifest: Manifest | None,
    config: SourceConfig,
    *,
    pbin: PbinHeader | None = None,
) -> RecordedSource:
    """Find the source of a dataset.

    Args:
        prefix: Path without suffix.
        manifest: The dataset's manifest, if there is one.
        config: Options of tokenizer and engine.
        pbin: Header of the `.pbin`; None for an MMIDIDX pair.

    Raises:
        InputError: If there is no manifest, the dataset was not made from text, or an object store is out of reach.
        FormatError: If the manifest is damaged.
        TokenizerError: If the tokenizer is missing or differs from the recorded one.
    """
    from dsindex.text.engines import choose_engine

    content = manifest.content if manifest is not None else None
    recorded = content.tokenizer if content is not None else None
    key, pattern, selection = _recorded_text(prefix, manifest, pbin)
    if manifest is None or content is None or recorded is None or key is None:
        maker = "a build" if pbin is None else "`dsindex pack`"
        msg = (
            f"{prefix}: expected the manifest of {maker}, which names inputs and tokenizer, got none; without it the "
            f"dataset cannot be compared with its source (for a merged one, compare the datasets it was made of)"
        )
        raise InputError(msg)
    options = content.options
    tokenizer = load_recorded(prefix, recorded, manifest, given=config.tokenizer_model)
    provenance = f"{prefix}.{PROVENANCE_SUFFIX}"
    inputs, findings = _find_inputs(content.inputs, manifest.run.plan)
    settings = SourceSettings(
        dataset=prefix if pbin is None else f"{prefix}{PBIN_SUFFIX}",
        pbin=pbin,
        inputs=inputs,
        key=key,
        pattern=pattern,
        selection=selection,
        tokenizer=tokenizer,
        engine=choose_engine(
            tokenizer, config.engine, add_special_tokens=not options.tokenizer_hf_no_include_special_tokens
        ),
        dtype=content.token_dtype,
        eod_id=content.eod_id,
        empty_documents=options.empty_documents or "keep",
        max_record_bytes=options.max_record_size,
        quarantine=options.on_bad_record == "quarantine",
        provenance=provenance if is_stored(provenance) else None,
        sample=options.sample,
        shuffle_seed=options.shuffle_documents,
    )
    return RecordedSource(settings=settings, findings=tuple(findings))


def read_document_text(manifest: Manifest, path: str, *, offset: int, format: InputFormat) -> str | None:
    """Return the text of the record at an offset of an input, as the build read it; None if the values are no texts.

    Args:
        manifest: Of a dataset that was built from the input.
        path: The input, unchanged since then.
        offset: Byte offset of the record's line.
        format: The format of the input, in the manifest.

    Returns:
        The text, in which several texts of one document are lines; None as well for an input that cannot be read from
        the middle, such as a table or a compressed one.

    Raises:
        InputError: If the input cannot be read.
    """
    form = detect_form(path, shown_as=path, wanted=format)
    selection = _recorded_selection(manifest.content, manifest.run.plan)
    if selection is None or selection.vocabulary_size is not None or not form.can_seek:
        return None
    part = TextPart(path=path, begin=offset, end=offset + 1, form=form)
    for block in read_part(part, keys=selection.names, selection=selection):
        column = block.columns[selection.outputs[0]]
        if isinstance(column, TextColumn) and len(block.offsets) == 1 and block.offsets[0] == offset:
            return "\n".join(column.texts.to_pylist())
    return None


def _recorded_text(
    prefix: str, manifest: Manifest | None, pbin: PbinHeader | None
) -> tuple[str | None, TextPattern | None, Selection | None]:
    """Return the column that a dataset was made from, None if it is unknown, and the pattern or selection, if any.

    Raises:
        InputError: If the dataset was made from conversations.
    """
    if manifest is None:
        return None, None, None
    content = manifest.content
    if content.options.instruction is not None:
        msg = (
            f"{prefix}: expected a dataset of texts, got one of `dsindex instruct`, which cannot be compared record by "
            f"record; run the same `dsindex instruct` with another --output-prefix and compare the digests in both "
            f"manifests"
        )
        raise InputError(msg)
    if pbin is None:
        selection = _recorded_selection(content, manifest.run.plan)
        return (None, None, None) if selection is None else (selection.outputs[0], None, selection)
    pattern = parse_text_pattern(read_pbin_options(prefix, content).jq_pattern)
    return pattern.column, pattern, None


def _recorded_selection(content: Content, plan: Mapping[str, Any]) -> Selection | None:
    """Return the selection of a build, whose first output is the dataset; None if it was not built from records.

    Raises:
        InputError: If a jq program in the manifest does not compile.
    """
    options = content.options
    key = options.json_key if options.token_ids is None else options.token_ids
    keys = options.json_keys or ([] if key is None else [key])
    if not keys or content.tokenizer is None:
        return None
    is_sampled = options.sample is not None or any(file.share is not None for file in content.inputs)
    has_bad = content.account is not None and content.account.quarantined > 0
    if (is_sampled or has_bad) and options.json_key is not None:
        keys += _other_keys(options.json_key, plan)
    size = None if options.token_ids is None else content.tokenizer.vocabulary_size
    return open_selection(keys, where=options.where, join=options.join, vocabulary_size=size)


def _other_keys(key: str, plan: Mapping[str, Any]) -> list[str]:
    """Return the build's other keys: a record that is bad for one of them was quarantined for all.

    A sample depends on the texts of all keys, too.
    """
    keys = plan["settings"].get("json-keys")
    if not isinstance(keys, list) or key not in keys:
        return []
    return [other for other in keys if isinstance(other, str) and other != key]


def _find_inputs(
    recorded: Sequence[RecordedInput], plan: Mapping[str, Any]
) -> tuple[tuple[SourceInput, ...], list[str]]:
    """Find the inputs, by their paths as given or else their absolute paths; return also sentences about changes."""
    absolute = [entry[0] for entry in plan["inputs"]]
    inputs, findings = [], []
    for number, file in enumerate(recorded):
        path = file.path
        is_piped = path == STANDARD_INPUT
        if (is_piped or not is_there(path)) and number < len(absolute):
            path = absolute[number]
        try:
            path = spooled_path(path) if is_piped else path
            status = input_status(path)
            path, size_bytes = status.path, status.size_bytes
            fingerprint = fingerprint_input(path)
            form = detect_form(path, shown_as=file.path, wanted=cast("InputFormat", file.format or "jsonl"))
        except OSError as error:
            remedy = "store standard input there again" if is_piped else "restore it"
            findings.append(f"{path}: cannot be read ({error.strerror}); the dataset was made from it, {remedy}")
            continue
        except InputError as error:
            if isinstance(error, StoreError) and not isinstance(error, MissingObjectError):
                raise  # out of reach now, which says nothing about the dataset
            findings.append(str(error))
            continue
        if size_bytes != file.size_bytes or fingerprint != file.fingerprint:
            findings.append(
                f"{path}: expected the input of {file.size_bytes} bytes with fingerprint {file.fingerprint} as in the "
                f"manifest, got {size_bytes} bytes with {fingerprint}; it changed, restore the original"
            )
        inputs.append(SourceInput(path=path, size_bytes=size_bytes, form=form, share=file.share))
    return tuple(inputs), findings


def plan_ranges(settings: SourceSettings) -> list[SourceRange]:
    """Cut all inputs into ranges, whose first documents and lines are not yet known.

    Raises:
        InputError: If an input cannot be read.
    """
    return [
        SourceRange(input=number, begin=begin, end=end, first_document=0, num_documents=None, first_line=1)
        for number, file in enumerate(settings.inputs)
        for begin, end in pairwise(_bounds(file))
    ]


def _bounds(file: SourceInput) -> tuple[int, ...]:
    """Return where ranges of an input begin, and where the last one ends; a compressed stream is one range."""
    parts = find_parts(file.path, file.form, shard_size=RANGE_BYTES)
    return (*range(0, file.size_bytes, RANGE_BYTES), file.size_bytes) if parts is None else parts.bounds


def lay_out_source(
    settings: SourceSettings, *, executor: Executor
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Tokenize all inputs again and yield the lengths for an index, range by range, in order.

    Returns:
        For each range, the tokens of each sequence and the sequences of each document.
    """
    shared = executor.share(settings)
    calls = (
        Call(name=f"tokenize[{number}]", place=settings.dataset, function=lay_out_range, arguments=(piece, shared))
        for number, piece in enumerate(plan_ranges(settings))
    )
    return run_in_order(executor, calls)
