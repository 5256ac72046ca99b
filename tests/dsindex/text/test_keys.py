import pytest

from dsindex.errors import InputError
from dsindex.text.fields import show_path
from dsindex.text.selection import is_program, output_name, parse_key


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("text", "text", ("text",)),
        ("meta.text", "meta.text", ("meta.text",)),
        ("a|b", "a|b", ("a|b",)),
        ("a=b", "a=b", ("a=b",)),
        ("a=b=.c", "a=b=.c", ("a=b=.c",)),
        ("=.b", "=.b", ("=.b",)),
        (" .a", " .a", (" .a",)),
        ("größe", "größe", ("größe",)),
        (".text", "text", ("text",)),
        (".meta.text", "meta.text", ("meta", "text")),
        (".meta.text ", "meta.text", ("meta", "text")),
        ('."my key".x', "my key.x", ("my key", "x")),
        ('.["a b"]', "a b", ("a b",)),
        ('.a["b"].c', "a.b.c", ("a", "b", "c")),
        ('.a.["b.c"]', "a.b.c", ("a", "b.c")),
        (r'."\u0041\"".b', 'A".b', ('A"', "b")),
        ('.""', "", ("",)),
        ("body=.meta.text", "body", ("meta", "text")),
        ('body=."a=.b"', "body", ("a=.b",)),
        ('a.b=."text"', "a.b", ("text",)),
    ],
)
def test_names_and_paths(text, name, path):
    key = parse_key(text)
    assert (key.name, key.path, key.program) == (name, path, None)
    assert output_name(text) == name
    assert not is_program(text)


@pytest.mark.parametrize(
    "program", [".", ".a[0]", ".a[]", ".a?", ".a | .b", ".a.b // .c", r'."\(.a)"', ".a .b | .", ".größe?", ". as $x|$x"]
)
def test_anything_else_that_begins_with_a_dot_is_a_program(program):
    assert is_program(program)
    assert is_program(f"x={program}")
    assert output_name(program) is None
    assert output_name(f"x={program}") == "x"


def test_program_keeps_its_text_and_its_name():
    key = parse_key("both=.title + .text")
    assert (key.name, key.path, key.program) == ("both", None, ".title + .text")
    assert parse_key(".title + .text").name == ".title + .text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=.a |", r"jq pattern '\.a \|': syntax error"),
        ("x=.a | nosuch", r"jq pattern '\.a \| nosuch': .*nosuch"),
        ("x=. | input", "'input' is not allowed"),
        ("x=.a | env", "'env' is not allowed"),
    ],
)
def test_program_that_is_no_jq_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_key(text)


@pytest.mark.parametrize("path", [("a",), ("a", "b c"), ("", "\n"), ('"', "é"), ("1a", "_b1")])
def test_shown_path_is_the_path(path):
    assert parse_key(show_path(path)).path == path
