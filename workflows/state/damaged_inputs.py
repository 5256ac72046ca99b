"""Leave damaged inputs out of a job, if it is told to: each is read to its end before anything is planned.

So the output does not depend on how a damaged file would have been cut, and nothing of it is used.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from dsindex.containers.decoding import require_whole
from dsindex.containers.kinds import detect_file
from dsindex.errors import InputError
from dsindex.objects.requests import StoreError
from workflows.execution.cpus import available_cpus
from workflows.state.input_forms import detect_form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.text.tables.formats import TableFormat
    from workflows.state.input_forms import Columns, InputFormat
    from workflows.state.inputs import InputFile

SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedInput:
    """An input that was left out."""

    path: str
    size_bytes: int
    reason: str


def leave_out_damaged(
    inputs: Sequence[InputFile], *, wanted: InputFormat = "auto", columns: Columns | None = None
) -> tuple[list[InputFile], tuple[DamagedInput, ...]]:
    """Read every compressed input and every table to its end; return those that are whole, and the others.

    Args:
        inputs: All inputs.
        wanted: The format that was asked for.
        columns: The wanted columns of tables; None for all.

    Raises:
        InputError: If all are damaged.
    """
    with ThreadPoolExecutor(available_cpus(), thread_name_prefix="dsindex-check") as pool:
        faults = list(pool.map(partial(_find_fault, wanted=wanted, columns=columns), inputs))
    damaged = tuple(
        DamagedInput(path=file.path, size_bytes=file.size_bytes, reason=fault)
        for file, fault in zip(inputs, faults, strict=True)
        if fault is not None
    )
    if len(damaged) == len(inputs):
        msg = f"expected an input that is whole, got {len(damaged)} damaged ones; the first: {damaged[0].reason}"
        raise InputError(msg)
    return [file for file, fault in zip(inputs, faults, strict=True) if fault is None], damaged


def describe_damaged(damaged: Sequence[DamagedInput]) -> list[str]:
    """Return a summary of the inputs that were left out, and the reason of each of the first."""
    if not damaged:
        return []
    what = "1 damaged input was left out" if len(damaged) == 1 else f"{len(damaged):,} damaged inputs were left out"
    lines = [f"{what}:", *(f"  {file.reason}" for file in damaged[:SHOWN])]
    return lines + ([f"  and {len(damaged) - SHOWN:,} more; the manifest has all"] if len(damaged) > SHOWN else [])


def _find_fault(file: InputFile, *, wanted: InputFormat, columns: Columns | None) -> str | None:
    """Return what is wrong with an input's content; None for nothing, or if it would be an error of another kind."""
    try:
        container, _ = detect_file(file.absolute_path)
        if container != "plain":
            require_whole(file.absolute_path, container)
    except StoreError:
        raise  # the file may be whole
    except InputError as error:
        return str(error).replace(file.absolute_path, file.path)
    except OSError:
        return None  # reported when it is planned
    form = detect_form(file.absolute_path, shown_as=file.path, wanted=wanted)
    if not form.is_table or container != "plain":
        return None
    try:
        _read_table(file, cast("TableFormat", form.format), columns)
    except StoreError:
        raise
    except InputError as error:
        return str(error).replace(file.absolute_path, file.path)
    return None


def _read_table(file: InputFile, format: TableFormat, columns: Columns | None) -> None:
    from dsindex.text.tables.lines import read_table_lines
    from dsindex.text.tables.records import read_table_records
    from dsindex.text.tables.shapes import measure_table

    path = file.absolute_path
    end = len(measure_table(path, format, None).groups)
    if columns is None:
        for _ in read_table_lines(path, 0, end, format=format):
            pass
        return
    try:
        measure_table(path, format, columns)
    except InputError:
        return  # it is whole, but lacks a column
    for _ in read_table_records(path, 0, end, format=format, columns=columns):
        pass
