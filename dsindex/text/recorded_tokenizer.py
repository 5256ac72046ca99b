"""The tokenizer that a dataset was made with, as its manifest names it, and the one search for it.

It is looked for where it was, under its name in the working folder, and by that name in the folders above the dataset
and its first input; one of the hub in the hub's cache, by its commit. It is used only if its hash is the recorded one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from dsindex.errors import DsindexError, TokenizerError
from dsindex.json_text import decode_json
from dsindex.text.tokenizer import TokenizerOptions, load_tokenizer

if TYPE_CHECKING:
    from dsindex.text.tokenizer import Tokenizer

LEVELS_ABOVE = 3
"""Folders above a dataset, and above its first input, in which a tokenizer is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTokenizer:
    """The tokenizer that a manifest names."""

    name: str
    sha256: str
    revision: str | None
    """The commit in the hub; None for a path."""
    options: bytes
    """What was given beside the tokenizer's file, as JSON."""
    path: str | None = None
    """Where it was when the dataset was made."""
    first_input: str | None = None
    """Where the dataset's first input was."""

    def load(self, path: str, *, is_given: bool = False) -> Tokenizer:
        """Load a tokenizer with the recorded options; its hash may be another.

        Args:
            path: Its path.
            is_given: Whether the path was given by the user: it then takes the place of GPT-2's two files.

        Raises:
            TokenizerError: If it cannot be read, or the options are damaged.
        """
        return load_tokenizer(path, options=self._parse_options(is_given=is_given))

    def _parse_options(self, *, is_given: bool) -> TokenizerOptions:
        options = decode_json(self.options)
        named = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in options.items()
            if not (is_given and key == "vocab_file")
        }
        try:
            return msgspec.convert(named, TokenizerOptions)
        except msgspec.ValidationError as error:
            msg = f"{self.name}: expected options of a tokenizer in the manifest, got {options}; it is damaged"
            raise TokenizerError(msg) from error


def load_recorded(named: NamedTokenizer, prefix: str, *, given: str | None = None) -> Tokenizer:
    """Load the tokenizer that a manifest names.

    Args:
        named: The tokenizer.
        prefix: The dataset's path without suffix.
        given: The path to load it from; None to look for it.

    Raises:
        TokenizerError: If there is none with the recorded hash; it names what was found instead.
    """
    others = []
    for place in _places(named, prefix) if given is None else [given]:
        try:
            tokenizer = named.load(place, is_given=given is not None)
        except (DsindexError, OSError) as error:
            others.append(str(error))
            continue
        if tokenizer.sha256 == named.sha256:
            return tokenizer
        others.append(f"{place} has {tokenizer.sha256[:16]}…")
    found = "; ".join(others) or f"found none where it was, nor by that name in {os.getcwd()} or beside the data"
    raise TokenizerError(
        f"expected the tokenizer {named.name!r} with sha256 {named.sha256[:16]}… that the dataset was made with, "
        f"{found}; give its path with --tokenizer-model, in Python with tokenizer="
    )


def _places(named: NamedTokenizer, prefix: str) -> list[str]:
    """Return where the tokenizer may be, in the order to look."""
    if named.revision is not None:
        return [f"{named.name}@{named.revision}"]
    if "vocab_file" in decode_json(named.options):
        return [named.name]
    places = [*([] if named.path is None else [named.path]), named.name]
    for start in (prefix, *([] if named.first_input is None else [named.first_input])):
        folder = os.path.abspath(start)
        for _ in range(LEVELS_ABOVE):
            folder = os.path.dirname(folder)
            places.append(os.path.join(folder, named.name))
    return [place for place in dict.fromkeys(places) if os.path.exists(place)]
