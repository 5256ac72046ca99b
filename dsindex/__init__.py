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

from dsindex._version import __version__ as __version__

if TYPE_CHECKING:
    from dsindex.cli.render import show as show
    from dsindex.commands.api import build as build
    from dsindex.commands.api import build_index as build_index
    from dsindex.commands.api import convert as convert
    from dsindex.commands.api import inspect as inspect
    from dsindex.commands.api import instruct as instruct
    from dsindex.commands.api import merge as merge
    from dsindex.commands.api import mix as mix
    from dsindex.commands.api import pack as pack
    from dsindex.commands.api import raw_index as raw_index
    from dsindex.commands.api import report as report
    from dsindex.commands.api import trace as trace
    from dsindex.commands.api import verify as verify
    from dsindex.commands.findings import VerifyResult as VerifyResult
    from dsindex.datasets.opening import open as open
    from dsindex.errors import DsindexError as DsindexError
    from dsindex.errors import UsageError as UsageError
    from dsindex.runtime.progress import Snapshot as Snapshot

_FUNCTIONS = (
    *("build", "build_index", "convert", "inspect", "instruct", "merge", "mix", "pack", "raw_index", "report"),
    *("trace", "verify"),
)
_MODULES = {
    **dict.fromkeys(_FUNCTIONS, "dsindex.commands.api"),
    "VerifyResult": "dsindex.commands.findings",
    **dict.fromkeys(("DsindexError", "UsageError"), "dsindex.errors"),
    "Snapshot": "dsindex.runtime.progress",
    "open": "dsindex.datasets.opening",
    "show": "dsindex.cli.render",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a function or a class
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
        if name in _FUNCTIONS:
            module.show_html = _show_html  # type: ignore[attr-defined]
        return getattr(module, name)
    except ModuleNotFoundError as error:
        from dsindex.errors import missing_package

        raise missing_package(error) or error from error


def _show_html(result: object) -> str:
    """Return what `show` prints, for a notebook."""
    import html
    import io

    from dsindex.cli.render import show

    show(result, text := io.StringIO())
    return f"<pre>{html.escape(text.getvalue())}</pre>"


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__", "__version__"])
