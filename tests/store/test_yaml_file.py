"""Configuration files: what is read, and what is refused by file and line instead of hanging or guessing."""

import pytest

from dsindex.errors import InputError
from dsindex.store.config_files import normalize_option_names, parse_yaml


@pytest.mark.parametrize(("text", "message"), [
    ("a: &a [x]\nb: *a\n", r"c\.yaml, line 2: not valid YAML: aliases such as \*a are not allowed"),
    ("[" * 39_000, r"c\.yaml: not valid YAML"),
    ("a: [" + "?," * 50_000 + "]", r"c\.yaml: too many values for a configuration"),
    ("input: a\nb: 1\ninput: c\n", r"c\.yaml, line 3: not valid YAML: the key input is repeated"),
    ("a: !!timestamp 2024-13-01\n", r"c\.yaml: not valid YAML"),
    ("a: !!int ''\n", r"c\.yaml: not valid YAML"),
    (f"a: {'9' * 5000}\n", r"c\.yaml: not valid YAML"),
    ("a: !!python/object/apply:os.system [ls]\n", r"c\.yaml, line 1: not valid YAML"),
    (b"a: \xff\n", r"c\.yaml: not valid YAML"),
    ("{[a]: b}: c\n", r"c\.yaml, line 1: not valid YAML"),
    ("a: 1\n---\nb: 1\n", r"c\.yaml, line 2: not valid YAML"),
    ("", r"c\.yaml: None is not a mapping of options to values"),
], ids=["alias", "deep", "many", "key-twice", "date", "integer", "digits", "object", "no-utf8", "key-no-text",
        "two-documents", "empty"])  # fmt: skip
def test_what_is_no_configuration_is_refused_by_line(text, message):
    with pytest.raises(InputError, match=message):
        parse_yaml(text, source="c.yaml")


def test_option_may_have_dashes_but_not_both_spellings():
    assert normalize_option_names({"append-eod": True, "input": 1}, source="c.yaml") == {"append_eod": True, "input": 1}
    with pytest.raises(InputError, match=r"c\.yaml: the option append_eod is given twice"):
        normalize_option_names({"append-eod": True, "append_eod": False}, source="c.yaml")
