"""The text that is measured with: JSONL of any size that does not repeat itself, with the statistics of natural words.

Words come with the frequencies that they have in Python's own documentation, which every Python brings. One word in
twenty is put together from two of them: new words go on turning up, however long the text is, as in nature. One in
sixty is from the demo's lists in other scripts, half of these with escapes. Documents are log-normal in length and
never empty: preprocess_data_fast.py ends an empty one with EOD, other than preprocess_data.py, whose bytes are ours.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import tomllib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from dsindex.demo.run import LEXICON

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

WORDS_PER_DOCUMENT = 140
_CHUNK_WORDS = 2_000_000
_TABLE_SIZE = 1 << 20
_COMPOUND_SHARE, _FOREIGN_SHARE = 1 / 20, 1 / 60
_BETWEEN = b'"}\n{"text": "'


def write_text(path: Path, size_bytes: int, *, seed: int = 1, corpus: Path | None = None) -> Path:
    """Write records with a `text` until a file has about so many bytes; the same arguments give the same bytes.

    Args:
        path: Written anew.
        size_bytes: A little more, up to the end of a record.
        seed: Another one gives another text.
        corpus: JSONL to take records from instead; where it is too short it comes again in another order.
    """
    with path.open("wb") as file:
        if corpus is not None:
            _write_shuffled(file.fileno(), corpus, size_bytes, seed)
        else:
            _write_drawn(file.fileno(), size_bytes, seed)
    return path


def _write_shuffled(descriptor: int, corpus: Path, size_bytes: int, seed: int) -> None:
    lines = [line + b"\n" for line in corpus.read_bytes().splitlines() if line.strip()]
    rng = random.Random(seed)
    written = 0
    while written < size_bytes:
        rng.shuffle(lines)
        for line in lines:
            written += os.write(descriptor, line)
            if written >= size_bytes:
                break


def _write_drawn(descriptor: int, size_bytes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words, tables = _load_words()
    first = True
    written = 0
    while written < size_bytes:
        text = _draw_chunk(rng, words, tables)
        share = min(1.0, (size_bytes - written) / len(text))
        end = text.index(_BETWEEN, min(int(share * len(text)), len(text) - 2 * len(_BETWEEN) - 1_000_000))
        # A chunk begins and ends between two records: `"}\n{"text": "` is cut where its line ends.
        piece = (b'{"text": "' if first else _BETWEEN) + text[:end]
        first = False
        _write_all(descriptor, piece)
        written += len(piece)
    _write_all(descriptor, b'"}\n')


def _draw_chunk(rng: np.random.Generator, words: pa.LargeBinaryArray, tables: _Tables) -> bytes:
    ids = tables.words[rng.integers(0, _TABLE_SIZE, _CHUNK_WORDS)]
    seconds = np.flatnonzero(rng.random(_CHUNK_WORDS, np.float32) < _COMPOUND_SHARE)
    ids[seconds] = tables.second_halves[rng.integers(0, _TABLE_SIZE, len(seconds))]
    lengths = np.maximum(2, rng.lognormal(np.log(WORDS_PER_DOCUMENT) - 0.5, 1.0, _CHUNK_WORDS // 50)).astype(np.int64)
    ends = np.cumsum(lengths)
    ids[ends[ends < _CHUNK_WORDS]] = len(words) - 1  # what stands between two records
    ids[-1] = len(words) - 1
    taken = words.take(pa.array(ids))
    _, offsets, data = taken.buffers()
    size = int(np.frombuffer(offsets, np.int64)[len(taken)])
    return bytes(memoryview(data)[:size])


class _Tables(NamedTuple):
    """The number of each word as often as it is to be drawn, shape [_TABLE_SIZE]."""

    words: NDArray[np.int32]
    second_halves: NDArray[np.int32]


def _load_words() -> tuple[pa.LargeBinaryArray, _Tables]:
    """Return words as a JSON string spells them, a space before all but second halves; last what ends a record."""
    from pydoc_data.topics import topics

    counts = collections.Counter(re.findall(r"[^\s\\]+", "\n".join(topics[name] for name in sorted(topics))))
    common = [word for word, _ in counts.most_common()]
    foreign = _foreign_words()
    seconds = [word for word in common if re.fullmatch("[a-z]{2,9}", word)]
    texts = [_escaped(f" {word}") for word in common]
    texts += [_escaped(f" {word}", ascii_only=number % 2 == 0) for number, word in enumerate(foreign)]
    ranks = np.arange(20, len(foreign) + 20)
    frequencies = np.array([counts[word] for word in common])
    weights = [frequencies / frequencies.sum() * (1 - _FOREIGN_SHARE), _FOREIGN_SHARE / ranks / (1 / ranks).sum()]
    tables = _Tables(
        words=_spread(np.concatenate(weights)),
        second_halves=_spread(1 / np.arange(20, len(seconds) + 20)) + np.int32(len(texts)),
    )
    return pa.array([*(text.encode() for text in [*texts, *seconds]), _BETWEEN], pa.large_binary()), tables


def _spread(weights: NDArray[np.float64]) -> NDArray[np.int32]:
    edges = np.cumsum(weights / weights.sum())
    places = (np.arange(_TABLE_SIZE) + 0.5) / _TABLE_SIZE
    return np.searchsorted(edges, places).clip(0, len(weights) - 1).astype(np.int32)


def _foreign_words() -> list[str]:
    lexicon = tomllib.loads(LEXICON.read_text(encoding="utf-8"))
    tables = [table for name, table in lexicon.items() if name not in {"emoji", "code", "en"}]
    phrases = [phrase for slot in "splt" for table in tables for phrase in table[slot]]
    return [*lexicon["emoji"], *(word for phrase in phrases for word in phrase.split())]


def _escaped(text: str, *, ascii_only: bool = False) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
