"""Configuration files: what is read, and what is refused by file and line instead of hanging or guessing."""

import os

import pytest

from dsindex.errors import InputError
from dsindex.store.config_files import MAX_BYTES, MAX_NODES, option_names, parse_yaml, read_yaml

UNFOLDING = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
MERGING = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30))


@pytest.mark.parametrize(("text", "loaded"), [
    ("a: 1\nb: [x, 'y']\n", {"a": 1, "b": ["x", "y"]}),
    ("\ufeffa: 1\n", {"a": 1}),
    ("base: &base [1, 2]\na: *base\nb: *base\n", {"base": [1, 2], "a": [1, 2], "b": [1, 2]}),
    ("base: &base {x: 1, y: 2}\na:\n  <<: *base\n  y: 3\n", {"base": {"x": 1, "y": 2}, "a": {"x": 1, "y": 3}}),
    ("a: {x: 1}\nb: {x: 2}\n", {"a": {"x": 1}, "b": {"x": 2}}),
    ('name: "a\\udcff.jsonl"\n', {"name": "a\udcff.jsonl"}),
], ids=["plain", "bom", "alias", "merge", "same-key-elsewhere", "name-not-utf8"])  # fmt: skip
def test_plain_configurations_are_read(text, loaded):
    assert parse_yaml(text, source="c.yaml") == loaded


@pytest.mark.parametrize(("text", "message"), [
    (UNFOLDING, rf"c\.yaml, line 7: expected at most {MAX_NODES:,} values with all aliases unfolded, got more"),
    (MERGING, r"c\.yaml, line \d+: expected at most .* values"),
    ("b: 1\na: &a [1, *a]\n", r"c\.yaml, line 2: expected a finite value, got an alias inside its own anchor"),
    ("a: &a {b: *a}\n", r"c\.yaml, line 1: expected a finite value"),
    ("a: *b\n", r"c\.yaml, line 1: expected YAML, got a syntax error \(found undefined alias 'b'\)"),
    ("- " * 101 + "x", r"c\.yaml, line 1: expected at most 100 lists and mappings inside each other"),
    ("[" * 100_000, r"c\.yaml, line 1: expected at most 100 lists and mappings inside each other"),
    ("input: a\nb: 1\ninput: c\n", r"c\.yaml, line 3: expected each key once, got 'input' again, as on line 1"),
    ("a: {x: 1, 'x': 2}\n", r"c\.yaml, line 1: expected each key once, got 'x' again, as on line 1"),
    ("a: 1\njob:\n  b: 1\n  b: 1\n", r"c\.yaml, line 4: expected each key once, got 'b' again, as on line 3"),
    ("a: !!timestamp 2024-13-01\n", r"c\.yaml: expected YAML, got a value that cannot be read"),
    ("a: !!int ''\n", r"c\.yaml: expected YAML, got a value that cannot be read"),
    ("a: !!bool maybe\n", r"c\.yaml: expected YAML, got a value that cannot be read"),
    (f"a: {'9' * 5000}\n", r"c\.yaml, line 1: expected integers of at most 64 bits"),
    ("a: !!python/object/apply:os.system [ls]\n", r"c\.yaml, line 1: expected YAML, got a syntax error"),
    ("a: \x00\n", r"c\.yaml: expected YAML"),
    ("{[a]: b}: c\n", r"c\.yaml, line 1: expected YAML"),
    ("a: 1\n---\nb: 1\n", r"c\.yaml, line 2: expected YAML, got a syntax error"),
    ("", r"c\.yaml: expected a mapping of options to values, got nothing"),
    ("x" * (MAX_BYTES + 1), r"c\.yaml: expected a configuration of at most 16 MiB"),
], ids=["aliases-unfold", "merges-unfold", "holds-itself", "mapping-holds-itself", "unknown-alias", "deep", "deeper",
        "key-twice", "key-twice-on-a-line", "key-twice-inside", "date", "integer", "boolean", "digits", "object",
        "control", "key-no-text", "two-documents", "empty", "large"])  # fmt: skip
def test_what_is_no_configuration_is_refused_by_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_yaml(text, source="c.yaml")


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(InputError, match=r"c\.yaml: expected YAML, got a value that cannot be read \('utf-8' codec"):
        parse_yaml(b"a: \xff\n", source="c.yaml")


def test_configuration_may_come_through_a_pipe():
    """As `--config <(make-config)` in a shell gives it."""
    reader, writer = os.pipe()
    os.write(writer, b"a: 1\n")
    os.close(writer)
    assert read_yaml(f"/dev/fd/{reader}") == {"a": 1}
    os.close(reader)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a device")):
        with pytest.raises(InputError, match=f"{path}: cannot be read .{kind} in place of a file"):
            read_yaml(str(path))


def test_option_may_have_dashes_but_not_both_spellings():
    assert option_names({"append-eod": True, "input": 1}, source="c.yaml") == {"append_eod": True, "input": 1}
    with pytest.raises(InputError, match=r"c\.yaml: expected each option once, got append_eod in two spellings"):
        option_names({"append-eod": True, "append_eod": False}, source="c.yaml")
