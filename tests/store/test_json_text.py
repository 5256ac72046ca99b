"""JSON of our own and names that are not UTF-8: what is written can be read back."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.messages import show_name
from dsindex.store.json_text import decode_json, encode_json

LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
NAMES = st.binary(max_size=8).map(lambda name: name.decode("utf-8", "surrogateescape"))


@given(NAMES, VALUES, st.booleans())
def test_names_of_any_bytes_come_back(name, value, newline):
    whole = {name: [name, value], "file": name}
    written = encode_json(whole, newline=newline)
    assert decode_json(written) == whole
    assert written.endswith(b"\n") == newline
    assert b"\n" not in written.removesuffix(b"\n")
    assert json.loads(written) == whole  # any program can read it


@dataclass(frozen=True)
class Named:
    name: str
    size: int


def test_dataclass_is_written_the_same_whatever_its_names():
    assert encode_json(Named("a", 1)) == b'{"name":"a","size":1}'
    assert encode_json([Named("\udcff", 1)]) == b'[{"name":"\\udcff","size":1}]'


@pytest.mark.parametrize("text", [
    b"", b'{"a": "\\udcff"', b'"\xff"', b"[" * 200_000,
], ids=["empty", "cut", "no-utf8", "deep"])  # fmt: skip
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        decode_json(text)


@pytest.mark.parametrize(("name", "shown"), [
    ("plain name-1.jsonl", "plain name-1.jsonl"),
    ("grüße 日本\u3000語 نمی‌خواهم 😀", "grüße 日本\u3000語 نمی\\u200cخواهم 😀"),
    (os.fsdecode(b"caf\xe9.jsonl"), r"caf\udce9.jsonl"),
    ("two\nlines\r\x1b[31mred\x7f\x9b", r"two\nlines\r\x1b[31mred\x7f\x9b"),
    ("\u202etxt.exe\u2028", r"\u202etxt.exe\u2028"),
])  # fmt: skip
def test_names_are_shown_on_one_line(name, shown):
    assert show_name(name) == shown
    shown.encode()
