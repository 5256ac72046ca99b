"""The datasets of an index job: paths on the command line, or in the files that Megatron reads them from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsindex.errors import InputError
from dsindex.indices.blend import Blend, parse_data_path
from dsindex.indices.splits import SPLIT_NAMES
from dsindex.json_file import read_object
from dsindex.regular_files import open_file
from workflows.options.index_paths import local_path, parse_replacements

if TYPE_CHECKING:
    from workflows.options.index import IndexConfig


def with_given_paths(config: IndexConfig) -> IndexConfig:
    """Return options with the paths that --data-args-path or --per-split-data-args-path has.

    Raises:
        InputError: If such a file cannot be read, or has something else.
    """
    replacements = parse_replacements(config.dataset_path_as or ())

    def here(words: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if words is None else tuple(local_path(word, replacements) for word in words)

    if config.data_args_path is not None:
        return config.model_copy(update={"data_path": here(_read_words(config.data_args_path)), "data_args_path": None})
    if config.per_split_data_args_path is not None:
        words = _read_words_per_split(config.per_split_data_args_path)
        paths = {f"{split}_data_path": here(words[split]) for split in SPLIT_NAMES}
        return config.model_copy(update={**paths, "per_split_data_args_path": None})
    return config


def _read_words(path: str) -> tuple[str, ...]:
    try:
        with open_file(path) as file:
            words = tuple(file.read().decode().split())
    except OSError as error:
        msg = f"{path}: cannot be read ({error.strerror})"
        raise InputError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: expected the words of --data-path in UTF-8, got {error.reason} at byte {error.start}"
        raise InputError(msg) from error
    if not words:
        msg = f"{path}: expected the words of --data-path, got an empty file"
        raise InputError(msg)
    return words


def _read_words_per_split(path: str) -> dict[str, tuple[str, ...] | None]:
    """Read `{"train": […] or "words", "valid": …, "test": …}`; null is a split without data."""
    content = read_object(path)
    words: dict[str, tuple[str, ...] | None] = {}
    for split in SPLIT_NAMES:
        if split not in content:
            msg = f"{path}: expected the keys train, valid and test, which Megatron reads, got none called {split}"
            raise InputError(msg)
        value = content[split]
        if isinstance(value, str):
            value = value.split()
        if value is not None and not (isinstance(value, list) and value and all(map(_is_word, value))):
            msg = f"{path}: expected paths of {split} as a list or a text, or null, got {content[split]!r}"
            raise InputError(msg)
        words[split] = None if value is None else tuple(map(str, value))
    return words


def _is_word(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def sources(config: IndexConfig) -> list[Blend | None]:
    """Return the datasets of train, valid and test.

    Raises:
        LimitError: If a weight is not positive, or there are too many datasets.
    """
    if config.data_path:
        try:
            return [parse_data_path(config.data_path)] * len(SPLIT_NAMES)
        except ValueError as error:
            raise InputError(str(error)) from error
    paths = zip(SPLIT_NAMES, config.paths_per_split, strict=True)
    return [parse_data_path(words, flag=f"--{split}-data-path") if words else None for split, words in paths]
