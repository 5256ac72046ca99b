"""Look at index caches: their settings, whether they fit their data, and the tokens of a sample."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from dsindex.datasets.blended import BlendedDataset
from dsindex.datasets.opening import DESCRIPTION_SUFFIX, open_dataset
from dsindex.errors import FormatError, InputError
from dsindex.indices.cache import BLENDED_CLASS, read_description
from dsindex.indices.slot import read_record
from dsindex.indices.source import source_changes
from workflows.jobs.inspect_excerpts import BEFORE, FIRST_TOKENS, Excerpt, pieces_of
from workflows.jobs.inspect_origin import find_origin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.datasets.gpt import GPTDataset
    from workflows.jobs.inspect_origin import Origin


@dataclass(slots=True, kw_only=True)
class CacheView:
    """One index cache."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    dataset: GPTDataset | BlendedDataset | None = None
    """None if it could not be opened."""
    prefix: str = ""
    """Prefix of its first dataset."""

    def sample(self, number: int, *, tokenizer_model: str | None, max_tokens: int | None) -> list[Excerpt]:
        """Return the parts of a sample, each from one sequence.

        Raises:
            IndexError: If there is no such sample.
            FormatError: If the indices point outside the data.
        """
        if self.dataset is None:
            return []
        if not 0 <= number < len(self.dataset):
            msg = f"expected a sample from 0 to {len(self.dataset) - 1}, got {number}"
            raise IndexError(msg)
        datasets = {each.prefix: each for each in _datasets_of(self.dataset)}
        origins: dict[str, Origin] = {}
        excerpts = []
        left = FIRST_TOKENS * 16 if max_tokens is None else max_tokens
        for part in self.dataset.parts(number):
            data = datasets[part.prefix]
            origin = origins.setdefault(part.prefix, find_origin(part.prefix, tokenizer_model))
            document = data.document_of(part.sequence)
            shown = data.get(part.sequence, part.offset, min(part.num_tokens, left)).tolist()
            before = data.get(part.sequence, max(part.offset - BEFORE, 0), min(part.offset, BEFORE)).tolist()
            left -= len(shown)
            where = f"tokens {part.offset:,} to {part.offset + part.num_tokens - 1:,} of sequence {part.sequence:,}"
            excerpt = Excerpt(
                title=f"sample {number:,}: {where} (document {document:,}) of {part.prefix}",
                num_tokens=part.num_tokens,
                pieces=tuple(pieces_of(shown, origin.tokenizer, before=before)),
                document=document,
                source=origin.source_of(document),
                part=origin.part_of(document),
            )
            excerpts.append(excerpt)
        return excerpts


def _datasets_of(dataset: GPTDataset | BlendedDataset) -> list[Any]:
    parts = dataset.datasets if isinstance(dataset, BlendedDataset) else (dataset,)
    return [part.dataset for part in parts]


def look_at_cache(path: str, *, split: str | None, data_path: Sequence[str] | None) -> CacheView:
    """Describe the index caches in a folder, or one, and open that of a split.

    Args:
        path: The folder, or a description.
        split: Which split to open; None for the first of train, valid and test that is there.
        data_path: Prefixes of the datasets, if they were moved.

    Raises:
        InputError: If the split has no cache, or several.
        FormatError: If a description is damaged.
    """
    is_folder = os.path.isdir(path)
    pattern = os.path.join(glob.escape(path), f"*{DESCRIPTION_SUFFIX}")
    descriptions = {each: read_description(each) for each in (sorted(glob.glob(pattern)) if is_folder else [path])}
    view = CacheView()
    for each, description in descriptions.items():
        view.facts.setdefault("caches", []).extend(_describe(description))
        view.findings += _changes(each, data_path)
    splits = {str(known.get("index_split", known.get("split"))) for known in descriptions.values()}
    chosen = split or next((name for name in ("train", "valid", "test") if name in splits), None)
    try:
        prefixes = None if data_path is None else list(data_path)
        opened = open_dataset(path, split=chosen if is_folder else None, prefix=prefixes)
    except (FormatError, ValueError) as error:
        view.findings.append(str(error))
        return view
    except InputError as error:
        if split is not None:
            raise
        view.findings.append(str(error))
        return view
    view.dataset = cast("GPTDataset | BlendedDataset", opened)  # as only they have descriptions
    view.prefix = _datasets_of(view.dataset)[0].prefix
    view.facts["split"] = chosen or "the only one"
    view.facts["samples"] = len(opened)
    return view


def _describe(description: dict[str, Any]) -> list[str]:
    if description["class"] == BLENDED_CLASS:
        parts = [str(part.get("dataset_path")) for part in description["datasets"]]
        return [f"{description['split']}: a blend of {len(parts)}", *(f"  {part}" for part in parts)]
    shown = ("sequence_length", "num_samples", "random_seed", "split")
    settings = ", ".join(f"{name} = {description[name]}" for name in shown if description.get(name) is not None)
    return [f"{description['index_split']}: {description['dataset_path']}", f"  {settings}"]


def _changes(path: str, data_path: Sequence[str] | None) -> list[str]:
    """Return how the data differ from what dsindex recorded beside a cache; nothing for another program's cache."""
    record = read_record(f"{path.removesuffix(DESCRIPTION_SUFFIX)}-dsindex.json")
    source = record.get("source") if isinstance(record, dict) else None
    if not isinstance(source, dict):
        return []
    prefix = data_path[0] if data_path is not None and len(data_path) == 1 else source.get("prefix")
    try:
        return source_changes(str(prefix), source)
    except (KeyError, TypeError, ValueError, OSError):
        return [f"{path}: expected a record of the data beside it, got a damaged one; build the cache again"]
