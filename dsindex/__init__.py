"""dsindex: turn JSONL into merged, indexed training data.

    import dsindex

    built = dsindex.build("docs.jsonl", tokenizer="gpt2/", append_eod=True, output_prefix="out/docs")
    caches = dsindex.build_index(built, seq_length=4096, epochs=2.5, data_cache_path="out/cache")
    print(dsindex.verify(built, cache=caches))
    sample = dsindex.open(caches)[0]

Everything here is imported on first use: `import dsindex` by itself loads only this file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsindex.api.boundary import OptionsError
    from dsindex.api.build import build, estimate
    from dsindex.api.index import build_index
    from dsindex.api.instruct import instruct
    from dsindex.api.merge import convert, merge
    from dsindex.api.mix import mix
    from dsindex.api.open import open
    from dsindex.api.pack import pack
    from dsindex.api.ray_data import ray_datasource
    from dsindex.api.report import report
    from dsindex.api.results import (
        BuildResult,
        ConvertResult,
        EstimateResult,
        IndexResult,
        InstructResult,
        MergeResult,
        MixResult,
        PackedRepairResult,
        PackResult,
        RepairResult,
        ReportResult,
        VerifyResult,
    )
    from dsindex.api.verify import repair, verify
    from dsindex.errors import DsindexError
    from dsindex.execution.progress.reporter import Snapshot

__version__ = "0.1.0"

__all__ = [
    "BuildResult",
    "ConvertResult",
    "DsindexError",
    "EstimateResult",
    "IndexResult",
    "InstructResult",
    "MergeResult",
    "MixResult",
    "OptionsError",
    "PackResult",
    "PackedRepairResult",
    "RepairResult",
    "ReportResult",
    "Snapshot",
    "VerifyResult",
    "build",
    "build_index",
    "convert",
    "estimate",
    "instruct",
    "merge",
    "mix",
    "open",
    "pack",
    "ray_datasource",
    "repair",
    "report",
    "verify",
]

_RESULTS = "dsindex.api.results"
_MODULES = {
    "BuildResult": _RESULTS,
    "ConvertResult": _RESULTS,
    "DsindexError": "dsindex.errors",
    "EstimateResult": _RESULTS,
    "IndexResult": _RESULTS,
    "InstructResult": _RESULTS,
    "MergeResult": _RESULTS,
    "MixResult": _RESULTS,
    "OptionsError": "dsindex.api.boundary",
    "PackResult": _RESULTS,
    "PackedRepairResult": _RESULTS,
    "RepairResult": _RESULTS,
    "ReportResult": _RESULTS,
    "Snapshot": "dsindex.execution.progress.reporter",
    "VerifyResult": _RESULTS,
    "build": "dsindex.api.build",
    "build_index": "dsindex.api.index",
    "convert": "dsindex.api.merge",
    "estimate": "dsindex.api.build",
    "instruct": "dsindex.api.instruct",
    "merge": "dsindex.api.merge",
    "mix": "dsindex.api.mix",
    "open": "dsindex.api.open",
    "pack": "dsindex.api.pack",
    "ray_datasource": "dsindex.api.ray_data",
    "repair": "dsindex.api.verify",
    "report": "dsindex.api.report",
    "verify": "dsindex.api.verify",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function or a class
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
