"""dsindex: turn text into merged, indexed training data.

    import dsindex

    built = dsindex.build("docs.jsonl", tokenizer="gpt2/", append_eod=True, output_prefix="out/docs")
    caches = dsindex.build_index(built, seq_length=4096, epochs=2.5, data_cache_path="out/cache")
    dsindex.show(dsindex.verify(built, cache=caches))
    sample = dsindex.open(caches)[0]

Everything here is imported on first use: `import dsindex` by itself loads only this file.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsindex.cli.render import show as show
    from dsindex.datasets.opening import open as open
    from dsindex.engine.progress import Snapshot as Snapshot
    from dsindex.errors import DsindexError as DsindexError
    from dsindex.errors import UsageError as UsageError
    from dsindex.functions import build as build
    from dsindex.functions import build_index as build_index
    from dsindex.functions import convert as convert
    from dsindex.functions import inspect as inspect
    from dsindex.functions import instruct as instruct
    from dsindex.functions import merge as merge
    from dsindex.functions import mix as mix
    from dsindex.functions import pack as pack
    from dsindex.functions import raw_index as raw_index
    from dsindex.functions import report as report
    from dsindex.functions import trace as trace
    from dsindex.functions import verify as verify
    from dsindex.tools.results import VerifyResult as VerifyResult

__version__ = "0.1.0"

_FUNCTIONS = ("build", "build_index", "convert", "inspect", "instruct", "merge", "mix", "pack", "raw_index", "report")
_MODULES = {
    **dict.fromkeys((*_FUNCTIONS, "trace", "verify"), "dsindex.functions"),
    "VerifyResult": "dsindex.tools.results",
    **dict.fromkeys(("DsindexError", "UsageError"), "dsindex.errors"),
    "Snapshot": "dsindex.engine.progress",
    "open": "dsindex.datasets.opening",
    "show": "dsindex.cli.render",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function or a class
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from dsindex.errors import missing_package

        raise missing_package(error) or error from error


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__version__"])
