"""Look at what has no tokens of its own: raw indices, loss masks and work folders."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import packing_prefix
from dsindex.datasets.opening import MASK_SUFFIX, open_dataset
from dsindex.datasets.raw import RawLines
from dsindex.errors import FormatError
from dsindex.inspection.stores import size_of
from dsindex.json_text import decode_json
from dsindex.regular_files import open_file
from workflows.jobs.inspect_excerpts import Excerpt
from workflows.progress.progress_file import LARGEST_BYTES, PROGRESS_FILE
from workflows.state.history import read_history
from workflows.state.journal import ledger_path
from workflows.state.lock import owner_is_gone
from workflows.state.owned_folder import LOCK_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dsindex.formats.token_array import Tokens

BLOCK_BYTES = 1 << 22
FIRST_LINES = 3
LINE_CHARACTERS = 400


def look_at_lines(
    facts: dict[str, Any], excerpts: list[Excerpt], index_path: str, *, line: int | None, cut: int | None
) -> None:
    """Describe a raw index and show lines of its file.

    Raises:
        InputError: If the file is missing.
        FormatError: If the index is damaged or belongs to another file.
        IndexError: If there is no such line.
    """
    lines = open_dataset(index_path)
    if not isinstance(lines, RawLines):
        msg = f"{index_path}: expected a raw index, got another kind of dataset"
        raise FormatError(msg)
    facts["files"] = size_of([lines.path, index_path])
    facts["lines"] = len(lines)
    for number in range(min(FIRST_LINES, len(lines))) if line is None else [line]:
        if not 0 <= number < len(lines):
            msg = f"{index_path}: expected a line from 0 to {len(lines) - 1}, got {number}"
            raise IndexError(msg)
        text = lines[number].decode(errors="replace")
        shown = len(text) if line is not None and cut is None else min(len(text), cut or LINE_CHARACTERS)
        more = f" … {len(text) - shown:,} more characters" if shown < len(text) else ""
        excerpts.append(Excerpt(title=f"line {number:,} of the index", num_tokens=0, text=f"{text[:shown]}{more}"))


def open_loss_masks(prefix: str) -> Tokens | None:
    """Return the loss mask of each token of instruction data; None if they cannot be read."""
    try:
        return IndexedDataset(f"{prefix}{MASK_SUFFIX}").token_columns()[0]
    except FormatError:
        return None


def look_at_loss_masks(facts: dict[str, Any], findings: list[str], prefix: str) -> None:
    """Count the trainable tokens of instruction data, and name its block layouts."""
    try:
        masks = IndexedDataset(f"{prefix}{MASK_SUFFIX}")
    except FormatError as error:
        findings.append(str(error))
        return
    values = masks.token_columns()[0]
    trainable = sum(
        int(np.count_nonzero(values[begin : begin + BLOCK_BYTES])) for begin in range(0, len(values), BLOCK_BYTES)
    )
    facts["trainable tokens"] = f"{trainable:,} of {len(values):,}"
    if "tokens" in facts and facts["tokens"] != len(values):
        findings.append(f"{prefix}{MASK_SUFFIX}: expected {facts['tokens']:,} masks, got {len(values):,}")
    layouts = sorted(glob.glob(f"{packing_prefix(glob.escape(prefix), 0)[:-1]}*.idx"))
    if layouts:
        facts["block layouts"] = [os.path.basename(layout).removesuffix(".idx") for layout in layouts]


def look_at_work_folder(path: str) -> dict[str, Any]:
    """Describe a work folder: its job, and how far it is.

    Raises:
        FormatError: If its ledger cannot be read.
    """
    history = read_history(ledger_path(path))
    progress = _read_progress(os.path.join(path, PROGRESS_FILE))
    facts: dict[str, Any] = {"finished": "yes" if history.finished else "no: run the same command again to continue"}
    if history.plan is not None:
        inputs = [str(entry[0]) for entry in history.plan["inputs"]]
        facts["inputs"] = inputs[:FIRST_LINES] + [f"and {len(inputs) - FIRST_LINES:,} more"] * (
            len(inputs) > FIRST_LINES
        )
        settings: Mapping[str, Any] = history.plan["settings"]
        facts["settings"] = [f"{name} = {value}" for name, value in settings.items() if value not in (None, False, "")]
    for name in ("output", "state", "started", "updated", "host", "error", "message"):
        if isinstance(progress.get(name), str):
            facts[name] = progress[name]
    if facts.get("state") == "running" and owner_is_gone(os.path.join(path, LOCK_FILE)):
        facts["state"] = "running when it ended: its driver is gone"
    stage = progress.get("stage")
    if isinstance(stage, dict):
        facts["stage"] = (
            f"{stage.get('stage', stage.get('name', 'unknown'))}: {stage.get('done')} of {stage.get('total')}"
        )
    return facts


def _read_progress(path: str) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), open_file(path) as file:
        progress = decode_json(file.read(LARGEST_BYTES))
        if isinstance(progress, dict):
            return progress
    return {}
