"""What the pages refer to exists: files and headings, and the sections that the code cites."""

import re

import pytest

from dsindex.cli.parser import COMMANDS, load_model
from dsindex.options.model import options_of
from tests.docs.examples import PAGES, ROOT

_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_SECTION = re.compile(r"formats\.md,? (?:§|sections? )(\d+)")
_MODULE = re.compile(r"`((?:dsindex|tests|workflows|docs|cluster_configs)/[\w./]+)`")
_CONTRACT = re.compile(r'architecture\.md, "([^"]+)"')


def headings(page):
    """Return a page's headings, without those inside of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def slug(heading):
    """Return the anchor of a heading, as MkDocs and GitHub make it.

    >>> slug("1. MMIDIDX"), slug("Two engines")
    ('1-mmididx', 'two-engines')
    """
    words = re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower()
    return re.sub(r"[\s-]+", "-", words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page):
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve() if target else page
        assert linked.is_file(), f"{page.name}: no file {target}"
        anchors = {slug(heading) for heading in headings(linked)} if anchor else set()
        assert not anchor or anchor in anchors, f"{page.name}: no heading for {target}#{anchor}"


def test_modules_named_exist():
    named = _MODULE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert named


def test_code_cites_sections_that_exist():
    formats = {heading.split(".")[0] for heading in headings(ROOT / "docs" / "formats.md") if heading[0].isdigit()}
    contracts = set(headings(ROOT / "docs" / "architecture.md"))
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "dsindex").rglob("*.py")}
    assert {number for text in texts.values() for number in _SECTION.findall(text)} >= {"1", "2", "3"}
    for path, text in texts.items():
        assert set(_SECTION.findall(text)) <= formats, path
        assert set(_CONTRACT.findall(text)) <= contracts, path


def test_every_page_is_reached_from_the_index_and_from_another_page():
    targets = {page: _LINK.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    links = {page: {(page.parent / path).resolve() for path, _ in pairs if path} for page, pairs in targets.items()}
    pages, index = {page for page in PAGES if page.parent.name == "docs"}, ROOT / "docs" / "index.md"
    assert pages - {index} <= links[index]
    linked = set().union(*(paths for page, paths in links.items() if page not in {index, ROOT / "README.md"}))
    assert {page.name for page in pages - linked} <= {"index.md", "tutorial.md"}


def test_reference_has_every_option():
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        section = text.partition(f"## dsindex {command}\n")[2].partition("\n## ")[0]
        options = {name for name, option in options_of(load_model(command)).items() if option.help}
        missing = {name for name in options if f"`{name}`" not in section}
        assert not missing, f"{command}: run .venv/bin/python .ci/reference.py"


def test_messages_of_the_troubleshooting_page_exist():
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dsindex").rglob("*.py"))
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    messages = [message for row in rows for message in re.findall("`([^`]+)`", row)]
    assert [message for message in messages if message not in source] == ["line N:"]
    assert len(messages) > 25


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
