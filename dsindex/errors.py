"""All errors that a user can cause. A message is one sentence, `{where}: {what happened}`; a hint may follow.

    DsindexError
    ├── InputError              an input is missing, empty, unreadable, or changed while it was read
    │   ├── BadRecordError      one line of an input is not a record; knows the file and byte offset
    │   └── StoreError          an object store refuses a request, or cannot be reached
    │       └── MissingObjectError  there is no object at an address
    ├── RecordProblem           a record cannot become tokens; the reader of the file adds file and line
    ├── TokenizerError          a tokenizer cannot be read, or lacks what the job needs
    │   └── UnencodableError    the tokenizer's library fails on some texts; their records become bad records
    ├── FormatError             a file does not conform to its format
    ├── OutputError             an output exists already, cannot be written, or does not fit on the disk
    ├── PlanError               the work folder belongs to a command with other options, or to a running one
    ├── LimitError              a size is too large for a format or the machine; checked before work starts
    ├── TaskError               a task still fails after its last retry
    ├── MissingPackageError     a package is not installed
    └── UsageError              options are unknown, missing, wrong, or contradict each other

Misuse of the library (a wrong type, an index out of range) raises ValueError, TypeError or IndexError.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


class DsindexError(Exception):
    """Base class of errors that a user can cause; the command line prints the message and exits with 1.

    Args:
        lines: One sentence that says what happened; then details, each printed on its own line.
        hint: What the user can do, printed as `hint: ...` on the last line.
        fields: Keyword arguments of the built-in exception that a subclass extends.

    >>> print(InputError("a.jsonl: empty file", hint="leave it out with --exclude"))
    a.jsonl: empty file
    hint: leave it out with --exclude
    """

    transient: bool = False
    """Whether a retry may succeed, for example after an I/O error."""

    def __init__(self, *lines: object, hint: str | None = None, **fields: object) -> None:
        super().__init__(*lines, *([] if hint is None else [f"hint: {hint}"]), **fields)

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))

    @property
    def sentence(self) -> str:
        """The error and its hint on one line, for findings and notes."""
        return "; ".join(str(line).removeprefix("hint: ") for line in self.args)


class InputError(DsindexError):
    """An input is missing, empty, unreadable, or changed while it was read."""


class StoreError(InputError):
    """An object store refuses a request, or cannot be reached."""


class MissingObjectError(StoreError):
    """There is no object at an address."""


class BadRecordError(InputError):
    """One line of an input is not a record.

    Args:
        path: The input file.
        offset: Byte offset of the line in the decompressed text; for a table, the row group.
        reason: What is wrong, without file and line.
        line: 1-based number of the line or table row; None if it is not known.
        part: Shard number, and line number within the shard's part of the file, both 0-based.
        is_row: Whether the record is a table row, so that `offset` is its row group.
        hint: What the user can do.
    """

    def __init__(
        self,
        path: str,
        offset: int,
        reason: str,
        line: int | None = None,
        *,
        part: tuple[int, int] | None = None,
        is_row: bool = False,
        hint: str | None = None,
    ) -> None:
        if is_row:
            place = f"row group {offset}" if line is None else f"row {line}"
        else:
            place = f"line at byte {offset}" if line is None else f"line {line}"
        super().__init__(f"{path}, {place}: {reason}", hint=hint)
        self.path = path
        self.offset = offset
        self.reason = reason
        self.line = line
        self.part = part
        self.is_row = is_row
        self.hint = hint

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[str, int, str, int | None]]:
        make = functools.partial(type(self), part=self.part, is_row=self.is_row, hint=self.hint)
        return make, (self.path, self.offset, self.reason, self.line)


class TokenizerError(DsindexError):
    """A tokenizer cannot be read, or lacks something that the command needs."""


class UnencodableError(TokenizerError):
    """The library of a tokenizer fails on some texts; their records become bad records.

    Args:
        name: The tokenizer's name.
        reasons: Position of each failing text in the batch → what is wrong with it.
    """

    def __init__(self, name: str, reasons: Mapping[int, str]) -> None:
        super().__init__(f"{name}: {next(iter(reasons.values()))}")
        self.name = name
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[UnencodableError], tuple[str, Mapping[int, str]]]:
        return type(self), (self.name, self.reasons)


class FormatError(DsindexError):
    """A file does not conform to its format."""


class OutputError(DsindexError):
    """An output exists already, cannot be written, or does not fit on the disk."""


class PlanError(DsindexError):
    """The work folder belongs to a command with other options, or to a running one."""


class LimitError(DsindexError):
    """A size is too large for a format or this machine; raised before anything is written."""


class TaskError(DsindexError):
    """A task still fails after its last retry."""


class MissingPackageError(DsindexError, ImportError):
    """A package is not installed."""


class UsageError(DsindexError, ValueError):
    """Options are unknown, missing, wrong, or contradict each other; the command line exits with 2."""


def missing_package(error: ImportError) -> MissingPackageError | None:
    """Return the error for a package that is not installed; None if the import failed for another reason.

    >>> str(missing_package(ModuleNotFoundError("No module named 'ray.data'", name="ray.data"))).splitlines()[0]
    "the package 'ray' is not installed, which dsindex needs"
    """
    package = missing = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package in {"", "dsindex"}:
        return None
    user, extra = "dsindex needs", ""
    if package in _OF_CLUSTERS:
        # opentelemetry is split into several packages, some of which may be installed, so name the exact module.
        missing, user, extra = str(error.name), "clusters need", "cluster"
    if package == "obstore":
        user, extra = "object stores need on every node", "objects"
    return MissingPackageError(
        f"the package {missing!r} is not installed, which {user}", hint=install_command(extra), name=error.name
    )


def install_command(extra: str) -> str:
    """Return the pip command for dsindex with an extra, from its original source: a clone, a URL, or an index."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    origin, extras = {}, extra and f"[{extra}]"
    with contextlib.suppress(PackageNotFoundError):
        origin = json.loads(distribution("dsindex").read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    folder = url.removeprefix("file://")
    if "dir_info" in origin:
        return f"pip install '{'.' if folder == os.getcwd() else folder}{extras}'"
    return f"pip install 'dsindex{extras}{url and f' @ {url}'}'"


_OF_CLUSTERS = {"aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client"}
"""Packages that ray[default] installs and plain ray does not."""


class RecordProblem(DsindexError):
    """A record cannot become tokens; the reader of the file adds file and line.

    Args:
        kind: A short name for counting: `bad-json`, `bad-text`, `bad-field`, `missing-field`, `no-turns`,
            `unknown-role`, `pattern-error`, `pattern-no-match`, `marker-in-text`, `unbalanced-markers`,
            `template-failed`, `not-encodable`, `no-trained-tokens`, `too-long`, `too-large`.
        reason: One sentence that says what is wrong.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason

    def __reduce__(self) -> tuple[type[RecordProblem], tuple[str, str]]:
        return type(self), (self.kind, self.reason)
