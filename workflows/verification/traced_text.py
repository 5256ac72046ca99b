"""The text of tokens that were traced, and whether their inputs are still what they were."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dsindex.errors import InputError, TokenizerError
from dsindex.shards.tokenize import fingerprint_input
from dsindex.text.tokenizer import decode, load_tokenizer
from workflows.state.input_paths import STANDARD_INPUT
from workflows.state.manifest import read_manifest
from workflows.verification.source import load_recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.text.tokenizer import Tokenizer
    from workflows.state.manifest import Manifest


class TracedTexts:
    """Decodes tokens with the tokenizer that each dataset was made with.

    Args:
        tokenizer_model: Path of the tokenizer; None to use the paths in the manifests.
    """

    def __init__(self, tokenizer_model: str | None) -> None:
        self._given = tokenizer_model
        self._manifests: dict[str, Manifest | None] = {}
        self._tokenizers: dict[str, Tokenizer | None] = {}
        self._by_sha256: dict[str, Tokenizer] = {}
        self._checked: set[tuple[str, int]] = set()
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about tokenizers that were not found, and inputs that moved or changed."""
        return tuple(self._notes)

    def decode(self, prefix: str, tokens: Sequence[int]) -> str | None:
        """Return the text of tokens of a dataset; None if its tokenizer was not found, which a note says.

        Raises:
            TokenizerError: If the given tokenizer is not the one that the dataset was made with.
            FormatError: If the manifest is damaged.
        """
        if prefix not in self._tokenizers:
            self._tokenizers[prefix] = self._load(prefix)
        tokenizer = self._tokenizers[prefix]
        if tokenizer is None or not tokens:
            return None
        if max(tokens) >= tokenizer.vocabulary_size:
            msg = (
                f"{prefix}: expected tokens below {tokenizer.vocabulary_size}, the size of {tokenizer.name}, got "
                f"{max(tokens)}; give the tokenizer that the dataset was made with, by --tokenizer-model"
            )
            raise TokenizerError(msg)
        return decode(tokenizer, tokens)

    def check_input(self, prefix: str, number: int) -> None:
        """Note an input that moved or changed since the dataset was made from it."""
        manifest = self._manifest(prefix)
        if (prefix, number) in self._checked or manifest is None:
            return
        self._checked.add((prefix, number))
        recorded = manifest.content.inputs[number]
        path, planned = recorded.path, manifest.run.plan["inputs"]
        if (path == STANDARD_INPUT or not os.path.isfile(path)) and number < len(planned):
            path = planned[number][0]
        if not os.path.isfile(path):
            if recorded.path != STANDARD_INPUT:
                self._notes[f"{path}: is not there any more; lines are those that it had when it was read"] = None
            return
        try:
            changed = os.path.getsize(path) != recorded.size_bytes or fingerprint_input(path) != recorded.fingerprint
        except (OSError, InputError) as error:
            self._notes[f"{path}: cannot be read ({error}); lines are those that it had when it was read"] = None
            return
        if changed:
            note = f"{path}: changed since the dataset was made from it; lines are those that it had then"
            self._notes[note] = None

    def _manifest(self, prefix: str) -> Manifest | None:
        if prefix not in self._manifests:
            self._manifests[prefix] = read_manifest(prefix)
        return self._manifests[prefix]

    def _load(self, prefix: str) -> Tokenizer | None:
        manifest = self._manifest(prefix)
        recorded = None if manifest is None else manifest.content.tokenizer
        if recorded is None:
            if self._given is None:
                self._notes[f"{prefix}: has no manifest that names its tokenizer; show text with --tokenizer-model"] = (
                    None
                )
                return None
            self._notes[
                f"{prefix}: has no manifest that names its tokenizer; the text is {self._given}'s, which may be another"
            ] = None
            return self._by_sha256.setdefault("given", load_tokenizer(self._given))
        if recorded.sha256 not in self._by_sha256:
            try:
                self._by_sha256[recorded.sha256] = load_recorded(recorded, self._given)
            except TokenizerError as error:
                if self._given is not None:
                    raise
                self._notes[f"{error}; only tokens are shown"] = None
                return None
        return self._by_sha256[recorded.sha256]
