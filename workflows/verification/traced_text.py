"""The text of tokens that were traced, and whether their inputs are still what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from dsindex.errors import InputError, TokenizerError
from dsindex.objects.requests import MissingObjectError
from dsindex.readable import input_status, is_there
from dsindex.shards.inputs import fingerprint_input
from dsindex.text.tokenizer import decode, load_tokenizer
from workflows.state.input_paths import STANDARD_INPUT
from workflows.state.manifest import read_manifest
from workflows.state.object_spool import spooled_path
from workflows.verification.recorded_tokenizer import load_recorded
from workflows.verification.source import read_document_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsindex.text.tokenizer import Tokenizer
    from dsindex.tracing.origins import SourceLine
    from workflows.state.input_forms import InputFormat
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
        self._inputs: dict[tuple[str, int], str | None] = {}
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

    def check_input(self, prefix: str, number: int) -> str | None:
        """Return the path of an input; None, and a note, if it moved or changed since the dataset was made from it."""
        place = (prefix, number)
        if place not in self._inputs:
            manifest = self._manifest(prefix)
            self._inputs[place] = None if manifest is None else self._find_input(manifest, number)
        return self._inputs[place]

    def read(self, prefix: str, source: SourceLine) -> str | None:
        """Return the text of a document from its input; None if that moved or changed, or cannot be read there.

        Raises:
            InputError: If the input cannot be read.
        """
        path, manifest = self.check_input(prefix, source.input), self._manifest(prefix)
        if path is None or manifest is None:
            return None
        wanted = cast("InputFormat", manifest.content.inputs[source.input].format or "jsonl")
        return read_document_text(manifest, path, offset=source.offset, format=wanted)

    def _find_input(self, manifest: Manifest, number: int) -> str | None:
        recorded, planned = manifest.content.inputs[number], manifest.run.plan["inputs"]
        path = recorded.path
        if (path == STANDARD_INPUT or not is_there(path)) and number < len(planned):
            path = str(planned[number][0])
        was = "lines are those that it had when the dataset was made from it"
        if not is_there(path):
            if recorded.path != STANDARD_INPUT:
                self._notes[f"{path}: this input is not there any more; {was}"] = None
            return None
        try:
            path = spooled_path(path) if recorded.path == STANDARD_INPUT else path
            status = input_status(path)
            path = status.path
            same = status.size_bytes == recorded.size_bytes and fingerprint_input(path) == recorded.fingerprint
        except MissingObjectError:
            self._notes[f"{path}: this input is not there any more; {was}"] = None
            return None
        except InputError as error:
            self._notes[f"{error}; {was}"] = None
            return None
        except OSError as error:
            self._notes[f"{path}: this input cannot be read ({error.strerror}); {was}"] = None
            return None
        if not same:
            self._notes[f"{path}: this input has changed; {was}"] = None
        return path if same else None

    def _manifest(self, prefix: str) -> Manifest | None:
        if prefix not in self._manifests:
            self._manifests[prefix] = read_manifest(prefix)
        return self._manifests[prefix]

    def _load(self, prefix: str) -> Tokenizer | None:
        manifest = self._manifest(prefix)
        recorded = None if manifest is None else manifest.content.tokenizer
        if recorded is None or manifest is None:
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
                self._by_sha256[recorded.sha256] = load_recorded(prefix, recorded, manifest, given=self._given)
            except TokenizerError as error:
                if self._given is not None:
                    raise
                self._notes[f"{error}; without it, documents are shown instead of the text of the tokens"] = None
                return None
        return self._by_sha256[recorded.sha256]
