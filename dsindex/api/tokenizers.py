"""Accept a tokenizer as a path or as an object of the `tokenizers` library.

An object is serialised to a temporary file, which is removed when the call ends: jobs read a tokenizer once, in the
driver, and send its bytes to workers.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import TYPE_CHECKING, TypeAlias

from dsindex.api.boundary import OptionsError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import tokenizers

TokenizerLike: TypeAlias = "str | os.PathLike[str] | tokenizers.Tokenizer"
"""The folder of a tokenizer, its tokenizer.json, or an object of the `tokenizers` library."""

OBJECT_NAME = "tokenizers.Tokenizer"
"""Name of a tokenizer object in the manifest, which identifies it by its `sha256`."""


@contextlib.contextmanager
def tokenizer_in_place(options: dict[str, Any], given: TokenizerLike | None) -> Iterator[dict[str, Any]]:
    """Yield the options with the tokenizer: a path, that of a temporary file if an object is given.

    Raises:
        OptionsError: If the tokenizer is neither a path nor a `tokenizers.Tokenizer`.
    """
    if given is None:
        yield options
        return
    if isinstance(given, str | os.PathLike):
        yield {**options, "tokenizer_model": os.fsdecode(given)}
        return
    library = sys.modules.get("tokenizers")
    if library is None or not isinstance(given, library.Tokenizer):
        backend = " (pass its backend_tokenizer)" if hasattr(given, "backend_tokenizer") else ""
        kind = f"{type(given).__module__}.{type(given).__name__}"
        raise OptionsError(f"tokenizer: expected a path or a tokenizers.Tokenizer, got {kind}{backend}")
    with tempfile.TemporaryDirectory(prefix="dsindex-tokenizer-") as folder:
        path = os.path.join(folder, OBJECT_NAME)
        with open(path, "w", encoding="utf-8") as file:
            file.write(given.to_str())
        yield {**options, "tokenizer_model": path}
