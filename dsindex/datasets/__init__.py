"""Datasets on disk as numpy arrays. Each class is imported on first access."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dsindex.errors import MissingPackageError as MissingPackageError

if TYPE_CHECKING:
    from dsindex.datasets.gpt import BlendedDataset as BlendedDataset
    from dsindex.datasets.gpt import GPTDataset as GPTDataset
    from dsindex.datasets.gpt import SampleOptions as SampleOptions
    from dsindex.datasets.indexed import IndexedDataset as IndexedDataset
    from dsindex.datasets.instruction import InstructionDataset as InstructionDataset
    from dsindex.datasets.instruction import PackedInstructionDataset as PackedInstructionDataset
    from dsindex.datasets.packed import PackedMemMapDatasetContinuous as PackedMemMapDatasetContinuous
    from dsindex.datasets.packed import PackedMemMapDatasetMegatron as PackedMemMapDatasetMegatron
    from dsindex.datasets.packed import PbinDocuments as PbinDocuments
    from dsindex.datasets.raw import MemMapDataset as MemMapDataset
    from dsindex.datasets.raw import RawLines as RawLines
    from dsindex.datasets.samples import SamplePart as SamplePart

_MODULES = {
    "gpt": ("BlendedDataset", "GPTDataset", "SampleOptions"),
    "indexed": ("IndexedDataset",),
    "instruction": ("InstructionDataset", "PackedInstructionDataset"),
    "packed": ("PackedMemMapDatasetContinuous", "PackedMemMapDatasetMegatron", "PbinDocuments"),
    "raw": ("MemMapDataset", "RawLines"),
    "samples": ("SamplePart",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
