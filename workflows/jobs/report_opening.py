"""Open a dataset for its report, and find out of which sources its documents are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dsindex.errors import FormatError, InputError
from dsindex.inspection.stores import IndexedStore, PackedStore
from dsindex.objects.urls import absolute
from dsindex.readable import is_stored
from dsindex.reporting.sources import ConsecutiveSources, OneSource, RecordedSources
from workflows.jobs.inspect_origin import find_origin
from workflows.jobs.inspect_others import look_at_loss_masks
from workflows.reporting.model import distinct
from workflows.state.publishing import PROVENANCE_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dsindex.inspection.kinds import Subject
    from dsindex.reporting.sources import Sources
    from workflows.jobs.inspect_origin import Origin
    from workflows.state.manifest import Content


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDataset:
    """A dataset, and what is known of its origin."""

    name: str
    """As it was given."""
    kind: str
    prefix: str
    files: tuple[str, ...]
    origin: Origin
    store: IndexedStore | PackedStore | None
    """None if it is damaged."""
    facts: dict[str, Any]
    findings: tuple[str, ...]

    @classmethod
    def open(cls, subject: Subject, tokenizer_model: str | None) -> Self:
        """Open a dataset; damage is a finding.

        Raises:
            InputError: If it is not a dataset of tokens.
            TokenizerError: If the tokenizer that was given cannot be read.
        """
        facts: dict[str, Any] = {}
        findings: list[str] = []
        prefix = subject.path
        if subject.kind == "instruction data":
            prefix = f"{subject.path}_text_document"
            look_at_loss_masks(facts, findings, subject.path)
        elif subject.kind == "pbin":
            prefix = subject.path.removesuffix(".pbin")
        elif subject.kind != "MMIDIDX":
            msg = f"{subject.path}: expected a dataset of tokens (.bin and .idx, or .pbin), got {_name(subject.kind)}"
            raise InputError(msg)
        files = (subject.path,) if subject.kind == "pbin" else (f"{prefix}.bin", f"{prefix}.idx")
        origin = find_origin(prefix, tokenizer_model)
        store: IndexedStore | PackedStore | None = None
        try:
            store = PackedStore(subject.path) if subject.kind == "pbin" else IndexedStore(prefix)
            if store.tokens.dtype.kind not in "iu":
                findings.append(f"{files[0]}: expected integer tokens, got {store.tokens.dtype}")
                store = None
        except FormatError as error:
            findings.append(str(error))
        return cls(
            name=subject.path if subject.kind != "instruction data" else prefix,
            kind=subject.kind,
            prefix=prefix,
            files=files,
            origin=origin,
            store=store,
            facts=facts,
            findings=(*findings, *origin.findings),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens to read."""
        return 0 if self.store is None else len(self.store.tokens)

    @property
    def sequence_lengths(self) -> NDArray[np.int32] | None:
        """Tokens of each sequence, if index caches can be of it."""
        return self.store.dataset.sequence_lengths if isinstance(self.store, IndexedStore) else None

    def is_at(self, prefix: str) -> bool:
        """Tell whether a path leads to this dataset."""
        try:
            return os.path.samefile(f"{prefix}.idx", f"{self.prefix}.idx")
        except OSError:
            return absolute(prefix) == absolute(self.prefix)


class KnownSources:
    """The sources of a dataset, as far as they are known; a damaged record of them is a finding."""

    def __init__(self, sources: Sources, names: Sequence[str], input_bytes: Sequence[int | None]) -> None:
        self._sources: Sources = sources
        self.num_sources = sources.num_sources
        self.names = names
        self.input_bytes = input_bytes
        self.findings: list[str] = []
        self.is_damaged = False
        """Whether the record turned out to be damaged while it was read, so that totals by source are wrong."""

    @classmethod
    def of_dataset(cls, opened: OpenedDataset, content: Content | None) -> Self:
        """Return the sources that provenance or manifest record; otherwise all documents are of one source."""
        store = opened.store
        inputs = content.inputs if content is not None else []
        names = distinct([file.path for file in inputs])
        # The size says something about tokens only if all records became tokens.
        input_bytes = [
            None if file.share is not None or file.filtered or file.elsewhere else file.text_bytes or file.size_bytes
            for file in inputs
        ]
        own = [file.documents for file in inputs]
        problem = None
        path = f"{opened.prefix}.{PROVENANCE_SUFFIX}"
        if store is not None and names and is_stored(path):
            try:
                recorded = RecordedSources(path, num_documents=store.num_documents, num_inputs=len(names))
                return cls(recorded, names, input_bytes)
            except FormatError as error:
                problem = str(error)
        counts = [num for num in own if num is not None]
        if store is not None and len(counts) == len(own) > 0 and sum(counts) == store.num_documents:
            return cls(ConsecutiveSources(counts), names, input_bytes)
        whole = [size_bytes for size_bytes in input_bytes if size_bytes is not None]
        name = names[0] if len(names) == 1 else "all"
        known = cls(OneSource(), [name], [sum(whole) if whole and len(whole) == len(input_bytes) else None])
        known.findings += [] if problem is None else [problem]
        return known

    def of(self, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the sources of documents [begin, end); zeros once the record is found damaged."""
        if not self.is_damaged:
            try:
                return self._sources.of(begin, end)
            except FormatError as error:
                self.findings.append(str(error))
                self.is_damaged = True
        return np.zeros(end - begin, np.int64)


def _name(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
