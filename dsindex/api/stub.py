"""Writes `dsindex/__init__.pyi`, by which type checkers and editors know the API: `python -m dsindex.api.stub`.

Signatures and docstrings are those that the functions have when they run, which are made of the options of the jobs.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import dsindex
from dsindex.api.boundary import option_parameters
from dsindex.api.index import IndexOptions

_HEAD = '''"""Written by `python -m dsindex.api.stub`: the signatures of the API, with the options of each job."""

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from dsindex.api.boundary import OptionsError as OptionsError, Paths
from dsindex.api.index import Blend, IndexOptions as _IndexOptions
from dsindex.api.progress import Progress
from dsindex.api.ray_data import RayDataset, ray_datasource as ray_datasource
from dsindex.api.subjects import Subject, Subjects
from dsindex.api.tokenizers import TokenizerLike
from dsindex.datasets.gpt import SampleOptions
from dsindex.datasets.opening import Dataset
from dsindex.errors import DsindexError as DsindexError
from dsindex.execution.progress.reporter import Snapshot as Snapshot
from dsindex.instruction.config import InstructionConfig
from dsindex.jobs.index import OrderFunction
from dsindex.options.instruct import ExportKind
'''


def write_stub() -> str:
    """Return the text of the stub."""
    results = sorted(name for name in dsindex.__all__ if name.endswith("Result"))
    functions = sorted(name for name in dsindex.__all__ if name.islower() and name != "ray_datasource")
    parts = [
        _HEAD + "".join(f"from {getattr(dsindex, name).__module__} import {name} as {name}\n" for name in results),
        "__version__: str\n__all__: list[str]\n",
        f'class IndexOptions(_IndexOptions):\n    """{IndexOptions.__doc__}"""\n\n'
        + _declare(
            "    ",
            "__init__",
            inspect.Signature(option_parameters(IndexOptions.model_fields)),
            "",
            first="self",
            returned="None",
        ),
        *(_declare("", name, inspect.signature(getattr(dsindex, name)), _text(name)) for name in functions),
    ]
    return "\n".join(parts)


def _text(name: str) -> str:
    return (inspect.getdoc(getattr(dsindex, name)) or "").replace("\\", "\\\\")


def _declare(
    indent: str, name: str, signature: inspect.Signature, text: str, *, first: str = "", returned: str | None = None
) -> str:
    lines = [f"{indent}def {name}("]
    lines += [f"{indent}    {first},"] if first else []
    is_keyword = False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            lines.append(f"{indent}    *,")
            is_keyword = True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        lines.append(f"{indent}    {each.name}: {each.annotation}{default},")
    lines.append(f"{indent}) -> {returned or signature.return_annotation}:" + ("" if text else " ..."))
    if text:
        shown = text.replace("\n", f"\n{indent}    ").replace(f"\n{indent}    \n", "\n\n")
        lines += [f'{indent}    """{shown}\n{indent}    """']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(dsindex.__file__).with_suffix(".pyi").write_text(write_stub(), encoding="utf-8")
