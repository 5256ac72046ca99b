"""What `verify` says of packed files, and damage to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import orjson

from dsindex.engine.manifest import manifest_path
from dsindex.execution.progress.reporter import Reporter
from dsindex.formats.pbin import read_document_lengths, read_pbin_header
from dsindex.tools.verify import VerifyConfig
from dsindex.tools.verify_pbin import run_pbin_verify
from tests.support.golden import OWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from dsindex.tools.verify_report import VerifyReport

Pack: TypeAlias = "Callable[..., str]"

TOKENIZER = str(OWN.plain_tokenizer)


def verify(path: str, **options: Any) -> VerifyReport:
    defaults = {"executor": "local", "workers": 2, "tokenizer_model": TOKENIZER}
    return run_pbin_verify(path, VerifyConfig(**{**defaults, **options}), reporter=Reporter())


def all_findings(report: VerifyReport) -> str:
    return "\n".join(report.findings)


def change_tokens(path: str, changes: dict[int, int]) -> None:
    header = read_pbin_header(path)
    stored = np.memmap(path, header.dtype, mode="r+", offset=header.version.header_bytes, shape=(header.num_tokens,))
    for token, value in changes.items():
        stored[token] = value
    stored.flush()


def document_ends(path: str) -> list[int]:
    """The token after each document."""
    lengths = np.concatenate(list(read_document_lengths(path, read_pbin_header(path))))
    return [int(end) for end in np.cumsum(lengths)]


def edit_manifest(path: str, edit: Callable[[dict[str, Any]], None]) -> None:
    manifest = Path(manifest_path(path.removesuffix(".pbin")))
    content = json.loads(manifest.read_bytes())
    edit(content)
    manifest.write_bytes(orjson.dumps(content))
