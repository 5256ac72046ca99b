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
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "BuildResult": "dsindex.jobs.build",
    "ConvertResult": "dsindex.jobs.conversion",
    "DsindexError": "dsindex.errors",
    "IndexOptions": "dsindex.api.index",
    "IndexResult": "dsindex.jobs.index",
    "InspectResult": "dsindex.tools.results",
    "InstructResult": "dsindex.jobs.instruct",
    "MergeResult": "dsindex.jobs.merge",
    "MixResult": "dsindex.tools.mix",
    "OptionsError": "dsindex.api.boundary",
    "PackResult": "dsindex.jobs.pack",
    "ReportResult": "dsindex.tools.report",
    "Snapshot": "dsindex.engine.progress",
    "TraceResult": "dsindex.tools.results",
    "VerifyResult": "dsindex.tools.results",
    "build": "dsindex.api.build",
    "build_index": "dsindex.api.index",
    "convert": "dsindex.api.merge",
    "inspect": "dsindex.api.inspect",
    "instruct": "dsindex.api.instruct",
    "merge": "dsindex.api.merge",
    "mix": "dsindex.api.mix",
    "open": "dsindex.api.open",
    "pack": "dsindex.api.pack",
    "report": "dsindex.api.report",
    "trace": "dsindex.api.inspect",
    "verify": "dsindex.api.verify",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function or a class
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        from dsindex.errors import missing_package

        missing = missing_package(error)
        if missing is None:
            raise
        raise missing from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__version__"])
