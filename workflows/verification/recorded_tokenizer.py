"""Load the tokenizer in a manifest, or the one at a path that was given for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.errors import TokenizerError
from dsindex.json_text import encode_json
from dsindex.text.recorded_tokenizer import NamedTokenizer, find_tokenizer

if TYPE_CHECKING:
    from dsindex.text.tokenizer import Tokenizer
    from workflows.state.manifest import Manifest, RecordedTokenizer


def name_tokenizer(recorded: RecordedTokenizer, manifest: Manifest) -> NamedTokenizer:
    """Return the tokenizer in a manifest, to look for it."""
    inputs = manifest.run.plan["inputs"]
    return NamedTokenizer(
        name=recorded.name,
        sha256=recorded.sha256,
        revision=recorded.revision,
        options=encode_json(recorded.options or {}),
        path=manifest.run.tokenizer_path,
        first_input=str(inputs[0][0]) if inputs else None,
    )


def load_recorded(prefix: str, recorded: RecordedTokenizer, manifest: Manifest, *, given: str | None) -> Tokenizer:
    """Load the tokenizer that a dataset was made with.

    Args:
        prefix: The dataset's path without suffix.
        recorded: The tokenizer in its manifest.
        manifest: The manifest.
        given: The path to load it from; None to look for it.

    Raises:
        TokenizerError: If it is missing or differs from the recorded one.
    """
    named = name_tokenizer(recorded, manifest)
    if given is not None:
        tokenizer = named.load(given, is_given=True)
        if tokenizer.sha256 != named.sha256:
            raise _another(named, given, tokenizer.sha256)
        return tokenizer
    found, others = find_tokenizer(named, prefix)
    if found is not None:
        return found
    if not others:
        msg = (
            f"expected the tokenizer {named.name!r} (sha256 {named.sha256[:16]}…) that the dataset was made with, "
            f"found none by that name; give its path with --tokenizer-model"
        )
        raise TokenizerError(msg)
    other = next((each for each in others if each.sha256 is not None), others[0])
    raise TokenizerError(other.error) if other.sha256 is None else _another(named, other.place, other.sha256)


def _another(named: NamedTokenizer, path: str, sha256: str) -> TokenizerError:
    return TokenizerError(
        f"{path}: expected the tokenizer with sha256 {named.sha256} that the dataset was made with, got {sha256}; give "
        f"that one with --tokenizer-model"
    )
