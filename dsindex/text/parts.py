"""Read a part of an input of any form: as blocks of records, or as lines of JSON."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dsindex.json_text import encode_json
from dsindex.text.fields import JSON_WHITESPACE
from dsindex.text.records import DEFAULT_BLOCK_BYTES, parse_blocks, read_records
from dsindex.text.selection import select_keys
from dsindex.text.streams import LARGEST_HEAD_BYTES, LineBlock, LongLine, SourceFile, open_source, read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from dsindex.text.forms import TextPart
    from dsindex.text.record_blocks import RecordBlock
    from dsindex.text.selection import Selection
    from dsindex.text.tables.formats import TableFormat


# Plain text as records: each line, or the whole file, becomes the object of JSON `{"text": …}`.
#
# So plain text is read, filtered and counted by the same rules as JSON lines. Offsets and line numbers are those of
# the
# text. A line of white space is blank, and a carriage return before a newline does not belong to the text.

TEXT_KEY = "text"
_BOM = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 20


def read_text_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Yield the lines of a part, each as an object of JSON; the arguments and errors are those of `read_lines`."""
    for block in read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes):
        yield block if isinstance(block, LongLine) else _as_json(block)


def read_text_file(part: TextPart, *, max_line_bytes: int | None = None) -> Iterator[LineBlock | LongLine]:
    """Yield a whole file as one object of JSON.

    Args:
        part: A whole file.
        max_line_bytes: A larger file is yielded as a LongLine.

    Raises:
        InputError: If the file cannot be read, has changed or is damaged.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    head = bytearray()
    head_bytes = LARGEST_HEAD_BYTES if max_line_bytes is None else min(max_line_bytes, LARGEST_HEAD_BYTES)
    buffer = memoryview(bytearray(_READ_BYTES))
    with open_source(part) as (source, _):
        while not source.at_end:
            size = source.read_into(buffer)
            num_bytes += size
            head += buffer[: min(size, head_bytes - len(head))]
            if max_line_bytes is None or num_bytes <= max_line_bytes:
                pieces.append(bytes(buffer[:size]))
            else:
                pieces.clear()
    if max_line_bytes is not None and num_bytes > max_line_bytes:
        yield LongLine(offset=0, line=0, head=bytes(head), num_bytes=num_bytes, limit=max_line_bytes)
    else:
        content = b"".join(pieces)
        pieces.clear()
        yield _line_block([_object(content.removeprefix(_BOM))], np.zeros(1, np.int64), 0, text_bytes=num_bytes)


def _as_json(block: LineBlock) -> LineBlock:
    lines = []
    for number in range(len(block.starts)):
        line = block.text(number)
        lines.append(_object(line.removesuffix(b"\r")) if line.strip(JSON_WHITESPACE) else b"")
    return _line_block(lines, block.offsets(), block.first_line, text_bytes=block.num_bytes)


def _object(text: bytes) -> bytes:
    """Return the object with a text; text that is not UTF-8 stays as it is, and readers of JSON then say so."""
    try:
        return encode_json({TEXT_KEY: text.decode()})
    except UnicodeDecodeError:
        return text.replace(b"\n", b" ")


def _line_block(lines: list[bytes], offsets: np.ndarray, first_line: int, *, text_bytes: int) -> LineBlock:
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64) - 1
    return LineBlock(
        data=bytearray(b"\n").join([*lines, b""]),
        num_bytes=int(ends[-1]) + 1,
        offset=0,
        first_line=first_line,
        starts=np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]),
        ends=ends,
        record_offsets=offsets,
        text_bytes=text_bytes,
    )


# Recognise tokenizers that gigatoken encodes as `tokenizers` does: only parts that were compared are accepted.
#
# gigatoken reads less of tokenizer.json than `tokenizers` does: it ignores a Split's behavior, other steps between
# splits, and `use_regex`. So every part that affects tokens must be one that `python -m tests.agreement` compares,
# which
# uses the same names for the parts. The patterns are those of published tokenizers.

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"[^\r\n\p{L}\p{N}]?"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_O200K = (
    rf"{_FIRST}{_UPPER}*{_LOWER}+{_SHORT_FORMS}?|{_FIRST}{_UPPER}+{_LOWER}*{_SHORT_FORMS}?"
    rf"|\p{{N}}{{1,3}}|{_SYMBOLS}|{_ENDS}"
)
_DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt2": (GPT2_PATTERN,),
    "llama3": (rf"{_SHORT_FORMS}|{_FIRST}\p{{L}}+|\p{{N}}{{1,3}}|{_OTHERS}|{_ENDS}",),
    "qwen2": (rf"{_SHORT_FORMS}|{_FIRST}\p{{L}}+|\p{{N}}|{_OTHERS}|{_ENDS}",),
    "qwen3.5": (rf"{_SHORT_FORMS}|{_FIRST}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}",),
    "o200k": (_O200K,),
    "nemotron": (rf"{_FIRST}{_UPPER}*{_LOWER}+|{_FIRST}{_UPPER}+{_LOWER}*|\p{{N}}|{_SYMBOLS}|{_ENDS}",),
    "deepseek": (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK),
}
"""Patterns of the Splits that were compared, in order, by name. cl100k's `\\s*[\\r\\n]` is missing because gigatoken
joins the spaces after a text's last newline to it, and `{1,3}+` because gigatoken reads it as `{1,3}`."""

_MODEL_OPTIONS = {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  "byte_fallback", "ignore_merges", "vocab", "merges"}  # fmt: skip
_SPACE_MARK = "▁"
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class Unsuitable(Exception):
    """The reason why gigatoken does not support a tokenizer."""


def compared_parts(document: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the compared parts that make up a tokenizer.json.

    Args:
        document: The content of the file, which `tokenizers` must be able to load.

    Returns:
        Names of parts in `dsindex.text.agreement`.

    Raises:
        Unsuitable: If there is a part that was not compared.
    """
    model = document["model"]
    _check_model_options(model)
    steps, normalizers = _flat(document.get("pre_tokenizer")), _flat(document.get("normalizer"))
    if model.get("byte_fallback"):
        _check_byte_fallback(model)
        return (_space_marks(steps, normalizers),)
    _check_byte_level(model, {token["content"] for token in document.get("added_tokens") or []})
    kinds = [step.get("type") for step in normalizers]
    if set(kinds) - {"NFC"}:
        raise Unsuitable(_not_compared("normalizer", normalizers))
    return (_byte_level_splits(steps), *(["nfc"] if kinds else []))


def adds_prefix_space(document: dict[str, Any]) -> bool:
    """Tell whether a byte-level pre-tokenizer adds a space before the text."""
    return any(step.get("add_prefix_space") for step in _flat(document.get("pre_tokenizer")))


def byte_characters() -> list[str]:
    """Return the character that represents each byte in a byte-level vocabulary, as defined by GPT-2.

    >>> byte_characters()[ord(" ")], byte_characters()[ord("a")]
    ('Ġ', 'a')
    """
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def merge_pairs(model: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of a BPE model in order; older files write each pair as one string."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or [])
    return [(first, second) for first, second in pairs]


def _check_model_options(model: dict[str, Any]) -> None:
    kind = model.get("type")
    if kind not in {"BPE", None}:  # files from before 2020 have no type
        raise Unsuitable(f"its model is of the type {kind!r}, not BPE")
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(option):
            raise Unsuitable(f"its model has the option {option} = {model[option]!r}")
    unknown = sorted(set(model) - _MODEL_OPTIONS)
    if unknown:
        raise Unsuitable(f"its model has the option {unknown[0]!r}")
    merges = model.get("merges") or []
    if len({merge if isinstance(merge, str) else tuple(merge) for merge in merges}) < len(merges):
        raise Unsuitable("its model lists a merge twice")


def _check_byte_level(model: dict[str, Any], added: set[str]) -> None:
    """Refuse vocabularies that lack bytes, or in which tokens are not written in byte characters."""
    vocabulary = model["vocab"]
    characters = byte_characters()
    missing = next((byte for byte, character in enumerate(characters) if character not in vocabulary), None)
    if missing is not None:
        raise Unsuitable(f"its vocabulary has no token for the byte 0x{missing:02X}")
    if set("".join(vocabulary)) <= set(characters):
        return
    is_byte_level = re.compile(f"[{re.escape(''.join(characters))}]*").fullmatch
    others = [token for token in vocabulary if not is_byte_level(token)]
    for token in others:
        spelt = "".join(characters[byte] for byte in token.encode())
        if token not in added or spelt in vocabulary:
            raise Unsuitable(f"its token {token!r} is not written in byte characters")
    if not set(others).isdisjoint(first + second for first, second in merge_pairs(model)):
        raise Unsuitable("its model merges to tokens that are not written in byte characters")


def _byte_level_splits(steps: Sequence[dict[str, Any]]) -> str:
    """Return the name of the way in which text is split before a byte-level model."""
    splits, last = list(steps[:-1]), steps[-1] if steps else {}
    if last.get("type") == "ByteLevel":
        if not splits and last.get("use_regex", True):
            return "gpt2"
        patterns = tuple((step.get("pattern") or {}).get("Regex") for step in splits)
        name = next((name for name, compared in PATTERNS.items() if patterns == compared), None)
        keeps = [_keeps_all(step, alone=len(splits) == 1) for step in splits]
        if name is not None and all(keeps) and not last.get("use_regex", True) and not last.get("add_prefix_space"):
            return name
    raise Unsuitable(_not_compared("pre-tokenizer", steps))


def _keeps_all(step: dict[str, Any], *, alone: bool) -> bool:
    """Tell whether a Split keeps each match, and the text between matches, as separate pieces.

    Several published tokenizers remove the text between matches, which is empty if the only pattern matches any text.
    """
    if step.get("type") != "Split":
        return False
    behavior = step.get("behavior")
    return behavior == "Isolated" or (alone and behavior == "Removed" and step.get("invert") is True)


def _check_byte_fallback(model: dict[str, Any]) -> None:
    vocabulary = model["vocab"]
    if model.get("ignore_merges"):
        raise Unsuitable("its model has the options byte_fallback and ignore_merges")
    for byte in range(256):
        if f"<0x{byte:02X}>" not in vocabulary and not (byte < 0x80 and chr(byte) in vocabulary):
            raise Unsuitable(f"its vocabulary has no token for the byte 0x{byte:02X}")
    if any(_BYTE_TOKEN.fullmatch(token) for pair in merge_pairs(model) for token in (*pair, "".join(pair))):
        raise Unsuitable("its model merges tokens of single bytes")


def _space_marks(steps: Sequence[dict[str, Any]], normalizers: Sequence[dict[str, Any]]) -> str:
    """Return the name of the way in which spaces become marks before a model with byte fallback."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE_MARK}
    prepend = {"type": "Prepend", "prepend": _SPACE_MARK}
    if list(normalizers) not in ([], [replace], [prepend, replace]):
        raise Unsuitable(_not_compared("normalizer", normalizers))
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    if not steps or (list(steps) == [split] and normalizers) or (len(steps) == 1 and _is_metaspace(steps[0])):
        return "space-marks"
    raise Unsuitable(_not_compared("pre-tokenizer", steps))


def _is_metaspace(step: dict[str, Any]) -> bool:
    """Tell whether a step is a Metaspace with all options, as `tokenizers` has written it since 0.15."""
    return (
        set(step) == {"type", "replacement", "prepend_scheme", "split"}
        and (step["type"], step["replacement"]) == ("Metaspace", _SPACE_MARK)
        and step["prepend_scheme"] in {"always", "first", "never"}
        and isinstance(step["split"], bool)
    )


def _flat(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer or normalizer in order, with sequences flattened."""
    return [] if step is None else list(_unfolded(step))


def _unfolded(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if not isinstance(step, dict):
        raise Unsuitable(f"its parts are written as {type(step).__name__}, not as objects")
    if step.get("type") != "Sequence":
        yield step
        return
    for part in step.get("pretokenizers") or step.get("normalizers") or []:
        yield from _unfolded(part)


def _not_compared(what: str, steps: Sequence[dict[str, Any]]) -> str:
    shown = ", ".join(_shown(step) for step in steps) or "none"
    return f"its {what} is not among those that were compared ({shown})"


@functools.cache
def _pattern_names() -> dict[str, str]:
    return {pattern: name for name, patterns in PATTERNS.items() for pattern in patterns}


def _shown(step: dict[str, Any]) -> str:
    """Return a step in Python's notation, with a known pattern replaced by its name."""
    options = {key: value for key, value in step.items() if key != "type"}
    pattern = options.get("pattern")
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if isinstance(regex, str):
        options["pattern"] = _pattern_names().get(regex, regex if len(regex) <= 40 else f"{regex[:40]}…")
    return f"{step.get('type')}({', '.join(f'{key}={value!r}' for key, value in options.items())})"


LARGEST_RECORD_BYTES = 2 << 30
"""Limit on a record if none is given, so that a file that unpacks to one endless line does not take all memory."""


def read_part(
    part: TextPart,
    *,
    keys: Sequence[str],
    selection: Selection | None = None,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int | None = None,
) -> Iterator[RecordBlock]:
    """Read the records of a part, as `read_records` reads those of JSON lines.

    Rows of tables are records whose keys are the columns; a document of plain text has the key `text`.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged, or does not have the wanted columns.
        RecordLimitError: At the first record for which a jq program takes too much time or memory.
        ValueError: If the part or the options are invalid.
    """
    max_record_bytes = LARGEST_RECORD_BYTES if max_record_bytes is None else max_record_bytes
    if part.form.format == "jsonl":
        return read_records(
            part,
            keys=keys,
            selection=selection,
            block_bytes=block_bytes,
            max_record_bytes=max_record_bytes,
        )
    selection = selection or select_keys(keys)
    paths = selection.paths
    if part.form.is_table and selection.vocabulary_size is None and paths is not None:
        blocks = _read_columns(part, paths, block_bytes=block_bytes, max_record_bytes=max_record_bytes)
        return map(selection.finish, blocks)
    if part.form.format in {"parquet", "arrow-file", "arrow-stream"} and paths is not None:
        # Token ids: of the table, only the column that leads to them becomes lines.
        columns = {path[0]: path[:1] for path in paths.values()}
        lines: Iterator[LineBlock | LongLine] = _read_rows(part, block_bytes=block_bytes, columns=columns)
    else:
        lines = read_part_lines(part, block_bytes=block_bytes, max_line_bytes=max_record_bytes)
    return parse_blocks(lines, selection, part, max_record_bytes)


def read_part_lines(
    part: TextPart, *, block_bytes: int, max_line_bytes: int | None = None
) -> Iterator[LineBlock | LongLine]:
    """Read the records of a part as lines of JSON, as `read_lines` reads them.

    Raises:
        InputError: If the input cannot be read, has changed or is damaged.
    """
    max_line_bytes = LARGEST_RECORD_BYTES if max_line_bytes is None else max_line_bytes
    if part.form.format == "jsonl":
        return read_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    if part.form.format == "lines":
        return read_text_lines(part, block_bytes=block_bytes, max_line_bytes=max_line_bytes)
    if part.form.format == "document":
        return read_text_file(part, max_line_bytes=max_line_bytes)
    return _read_rows(part, block_bytes=block_bytes)


def _read_columns(
    part: TextPart, paths: Mapping[str, tuple[str, ...]], *, block_bytes: int, max_record_bytes: int | None
) -> Iterator[RecordBlock]:
    from dsindex.text.tables.records import read_table_records  # loads more of pyarrow

    with _unpacked(part) as source:
        yield from read_table_records(
            part.path,
            part.begin,
            part.end,
            format=cast("TableFormat", part.form.format),
            columns=paths,
            block_bytes=block_bytes,
            max_record_bytes=max_record_bytes,
            expected_size=part.expected_size,
            source=source,
        )


def _read_rows(
    part: TextPart, *, block_bytes: int, columns: Mapping[str, tuple[str, ...]] | None = None
) -> Iterator[LineBlock]:
    from dsindex.text.tables.lines import read_table_lines

    with _unpacked(part) as source:
        yield from read_table_lines(
            part.path,
            part.begin,
            part.end,
            format=cast("TableFormat", part.form.format),
            columns=columns,
            block_bytes=block_bytes,
            expected_size=part.expected_size,
            source=source,
        )


@contextlib.contextmanager
def _unpacked(part: TextPart) -> Iterator[BinaryIO | None]:
    """Open a table that is compressed as a whole, such as `.csv.gz`; None for one that is not."""
    if part.form.container == "plain":
        yield None
        return
    with open_source(part) as (source, _):
        yield cast("BinaryIO", SourceFile(source))
