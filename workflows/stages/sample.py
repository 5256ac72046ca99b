"""A look at a sample before hours are spent: do the engines agree on it, and how large will the output be?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dsindex.errors import RecordLimitError
from workflows.stages.room import Estimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dsindex.text.engines import Engine
    from dsindex.text.patterns import TextPattern
    from dsindex.text.records import RecordBlock
    from dsindex.text.tokenizer import Tokenizer
    from workflows.state.inputs import InputFile

AUDITED_TEXT_BYTES = 16 << 10
"""A long text of the sample is cut here: the audit costs time with `tokenizers`."""


def examine_sample(
    inputs: Sequence[InputFile],
    keys: Sequence[str],
    tokenizer: Tokenizer,
    engine: Engine,
    *,
    pattern: TextPattern | None = None,
) -> Estimate:
    """Audit the engine on a sample spread over all inputs, and estimate the output's size from it.

    Bad records are passed over here: the shard that meets one says so with its place.

    Raises:
        TokenizerError: If the engines differ.
        RecordLimitError: If the pattern takes too much time or memory for a record of the sample.
    """
    from dsindex.text.audit import SAMPLE_MAX_BYTES, audit, clip_texts, sample_offsets
    from dsindex.text.encoders import make_encoder
    from dsindex.text.records import read_records

    sizes = [file.size_bytes for file in inputs]
    encoder = make_encoder(tokenizer, engine)
    sampled_bytes = tokens = documents = 0
    for number, begin, end in sample_offsets(sizes):
        path = inputs[number].absolute_path
        for block in _with_line_numbers(read_records(path, begin, end, keys=keys, pattern=pattern)):
            documents += len(block.offsets)
            for column in block.columns.values():
                texts = clip_texts(column.texts, text_bytes=AUDITED_TEXT_BYTES, total_bytes=SAMPLE_MAX_BYTES)
                audit(tokenizer, engine, texts)
                batch = encoder.encode(texts)
                kept = int(np.sum(batch.lengths)) + len(batch.lengths)
                tokens += kept * column.texts.nbytes // max(1, texts.nbytes)
        sampled_bytes += end - begin  # on average, the lines that begin in a range are as long as it
    if not documents:
        return Estimate(tokens=sum(sizes) / 3, documents=sum(sizes) / 1000)
    scale = sum(sizes) / sampled_bytes
    return Estimate(tokens=tokens * scale, documents=documents * scale)


def _with_line_numbers(blocks: Iterator[RecordBlock]) -> Iterator[RecordBlock]:
    from dsindex.text.lines import count_lines

    try:
        yield from blocks
    except RecordLimitError as error:
        raise error.with_line(count_lines(error.path, error.offset)) from error
