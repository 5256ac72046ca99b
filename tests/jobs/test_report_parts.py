"""Parts of a report: texts are escaped, examples fit, pictures cannot act, and pages are recognised."""

import pytest
from markupsafe import escape

from dsindex.tools.inspect_origin import LengthBin
from dsindex.tools.page.page import Block, Example, Page, Section, Table, is_page, show_lines, write_page
from dsindex.tools.page.sections import cut_to_fit
from tests.support.pages import ReadPage

HOSTILE = "</script></title><b onclick=x>&amp;]]>\u2028\u202e\x00\x1b"
SHOWN = r"</script></title><b onclick=x>&amp;]]>\u2028\u202e\x00\x1b"
PLAIN = "a text that is as long as the other"


def page_of(text):
    table = Table(caption=text, head=(text, text), rows=((text, text),), code=frozenset({1}))
    example = Example(document=1, num_tokens=2, kinds=("drawn",), facts=(text,), text=text, is_cut=True)
    section = Section(
        name=text, kind=text, tiles=((text, text),), facts=((text, (text,)),), notes=(text,), findings=(text,),
        blocks=(Block(title=text, sentences=(text,), tables=(table,)),), examples=(example,),
    )  # fmt: skip
    block = Block(title=text, sentences=(text,), tables=(table,))
    return write_page(Page(title=text, version="1", overview=(block,), sections=(section,), mixture=(block,)))


def test_every_text_of_a_page_is_escaped():
    plain, hostile = ReadPage(page_of(PLAIN)), ReadPage(page_of(HOSTILE))
    assert plain.unbalanced == hostile.unbalanced == []
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in plain.elements]
    for tag, texts in plain.texts.items():
        assert hostile.texts[tag] == [text.replace(PLAIN, SHOWN) for text in texts], tag
    for (_, before), (_, after) in zip(plain.elements, hostile.elements, strict=True):
        assert after == {name: value and value.replace(PLAIN, SHOWN) for name, value in before.items()}


def test_page_is_recognised_unless_it_was_changed():
    page = page_of("text")
    assert is_page(page)
    for changed in (page[:-1], page + b" ", page.replace(b"text", b"test"), b"", b"<!DOCTYPE html>\n", page[3:]):
        assert not is_page(changed)


@pytest.mark.parametrize("text", ["plain " * 100, "<&\"'>" * 90, "\x1b\u200b\U000e0041" * 80, "数" * 200, "a\n\t" * 99])
def test_examples_take_no_more_room_than_they_have(text):
    for room in (0, 1, 7, 200, 10_000):
        short = cut_to_fit(text, room)
        assert text.startswith(short)
        assert len(escape(show_lines(short)).encode()) <= room
        if room == 200:
            assert len(escape(show_lines(short)).encode()) > 60
    assert cut_to_fit(text, 10_000) == text


def test_pictures_have_nothing_that_acts():
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
    from dsindex.tools.page.pictures import draw_lengths_of_many, draw_shares

    bins = (LengthBin(begin=1, end=2, documents=3, tokens=3), LengthBin(begin=2, end=3, documents=1, tokens=2))
    pictures = [
        draw_shares("shares", "name", {HOSTILE: 3, "b\ud800\uffff": 0}, unit="tokens", rest=("others", 1)),
        draw_lengths_of_many({HOSTILE: bins, 'x" onload="y': bins}),
    ]
    for picture in pictures:
        for figure in picture.drawing:
            read = ReadPage(f"<svg>{figure.content}</svg>".encode())
            assert read.unbalanced == []
            assert {tag for tag, _ in read.elements} <= {"svg", "g", "path", "line", "rect", "text"}
            names = {name for _, attributes in read.elements for name in attributes}
            assert not names & {"id", "class", "style", "href", "onload", "onclick", "role", "aria-label"}
            assert figure.width < 900
