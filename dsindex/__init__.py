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
    from dsindex.errors import DsindexError
    from workflows.api.boundary import OptionsError
    from workflows.api.build import build, estimate
    from workflows.api.index import build_index
    from workflows.api.instruct import instruct
    from workflows.api.merge import convert, merge
    from workflows.api.mix import mix
    from workflows.api.open import open
    from workflows.api.pack import pack
    from workflows.api.ray_data import ray_datasource
    from workflows.api.report import report
    from workflows.api.results import (
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
    from workflows.api.verify import repair, verify
    from workflows.progress.snapshot import Snapshot

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

_RESULTS = "workflows.api.results"
_MODULES = {
    "BuildResult": _RESULTS,
    "ConvertResult": _RESULTS,
    "DsindexError": "dsindex.errors",
    "EstimateResult": _RESULTS,
    "IndexResult": _RESULTS,
    "InstructResult": _RESULTS,
    "MergeResult": _RESULTS,
    "MixResult": _RESULTS,
    "OptionsError": "workflows.api.boundary",
    "PackResult": _RESULTS,
    "PackedRepairResult": _RESULTS,
    "RepairResult": _RESULTS,
    "ReportResult": _RESULTS,
    "Snapshot": "workflows.progress.snapshot",
    "VerifyResult": _RESULTS,
    "build": "workflows.api.build",
    "build_index": "workflows.api.index",
    "convert": "workflows.api.merge",
    "estimate": "workflows.api.build",
    "instruct": "workflows.api.instruct",
    "merge": "workflows.api.merge",
    "mix": "workflows.api.mix",
    "open": "workflows.api.open",
    "pack": "workflows.api.pack",
    "ray_datasource": "workflows.api.ray_data",
    "repair": "workflows.api.verify",
    "report": "workflows.api.report",
    "verify": "workflows.api.verify",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function or a class
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
