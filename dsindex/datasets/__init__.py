"""Datasets on disk as numpy arrays. Each class is imported on first access."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsindex.errors import MissingPackageError

if TYPE_CHECKING:
    from dsindex.datasets.blended import BlendedDataset
    from dsindex.datasets.gpt import GPTDataset, SampleOptions
    from dsindex.datasets.indexed import IndexedDataset
    from dsindex.datasets.instruction import InstructionDataset, PackedInstructionDataset
    from dsindex.datasets.pbin import (
        PackedMemMapDatasetContinuous,
        PackedMemMapDatasetMegatron,
        PbinDocuments,
    )
    from dsindex.datasets.raw import MemMapDataset, RawLines
    from dsindex.datasets.sample_parts import SamplePart

_MODULES = {
    "BlendedDataset": "blended",
    "GPTDataset": "gpt",
    "IndexedDataset": "indexed",
    "InstructionDataset": "instruction",
    "MemMapDataset": "raw",
    "PbinDocuments": "pbin",
    "PackedInstructionDataset": "instruction",
    "PackedMemMapDatasetContinuous": "pbin",
    "PackedMemMapDatasetMegatron": "pbin",
    "RawLines": "raw",
    "SampleOptions": "gpt",
    "SamplePart": "sample_parts",
}

__all__ = [
    "BlendedDataset",
    "GPTDataset",
    "IndexedDataset",
    "InstructionDataset",
    "MemMapDataset",
    "MissingPackageError",
    "PackedInstructionDataset",
    "PackedMemMapDatasetContinuous",
    "PackedMemMapDatasetMegatron",
    "PbinDocuments",
    "RawLines",
    "SampleOptions",
    "SamplePart",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
