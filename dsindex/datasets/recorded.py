"""What readers need of the manifest beside a dataset (docs/formats.md): its inputs and its tokenizer.

Jobs write and read all of it: dsindex.engine.manifest.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, convert

from dsindex.errors import FormatError, MissingObjectError
from dsindex.json_text import decode_json
from dsindex.store.reading import open_readable

MANIFEST_SUFFIX = ".manifest.json"
LARGEST_MANIFEST_BYTES = 256 << 20


class RecordedInput(Struct, frozen=True, kw_only=True):
    """An input; one of a merge has a number of documents."""

    path: str
    documents: int | None = None


class RecordedTokenizer(Struct, frozen=True, kw_only=True):
    """A tokenizer, and what was given beside its file."""

    name: str
    sha256: str
    revision: str | None = None
    options: dict[str, Any] | None = None


class RecordedContent(Struct, frozen=True, kw_only=True):
    """What depends on inputs, tokenizer and options alone."""

    inputs: list[RecordedInput] = []
    account: dict[str, Any] | None = None
    """Counts of records; None for a merge."""
    tokenizer: RecordedTokenizer | None = None


class RecordedRun(Struct, frozen=True, kw_only=True):
    """Where inputs and tokenizer were when the dataset was made."""

    plan: dict[str, Any] = {}
    tokenizer_path: str | None = None

    @property
    def places(self) -> list[str]:
        """The absolute paths of the inputs' files."""
        return [str(each[0]) for each in self.plan.get("inputs", ()) if isinstance(each, list) and each]


class Recorded(Struct, frozen=True, kw_only=True):
    """What a manifest has for readers."""

    content: RecordedContent
    run: RecordedRun = RecordedRun()


def read_recorded(prefix: str) -> Recorded | None:
    """Read the manifest of a dataset; None if there is none.

    Raises:
        FormatError: If it cannot be read.
    """
    path = f"{prefix}{MANIFEST_SUFFIX}"
    try:
        with open_readable(path) as file:
            if file.size_bytes > LARGEST_MANIFEST_BYTES:
                raise ValueError(f"expected at most {LARGEST_MANIFEST_BYTES} bytes, got {file.size_bytes}")
            return convert(decode_json(file.read()), Recorded)
    except (FileNotFoundError, NotADirectoryError, MissingObjectError):
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as a manifest of dsindex ({error}); restore the file") from error
