"""The page of `dsindex report` in a headless Chromium, where there is one."""

import json

import pytest

from dsindex.cli.main import main
from tests.support.chromium import find_chromium, open_tab
from tests.support.datasets import write_dataset
from tests.support.golden import OWN

pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")
pytestmark = pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium on this machine")

SHOWN = "[...document.querySelectorAll('article:not([hidden]) h4')].map((each) => each.textContent.trim())"
STATUS = "document.querySelector('output').textContent"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    # Ids of letters: with the golden tokenizer, documents are runs of different lengths.
    documents = [[[10 + number % 50] * (number + 2) + [0]] for number in range(90)]
    prefix = write_dataset(folder / "data", documents)
    arguments = ["--tokenizer-model", str(OWN.plain_tokenizer), "-o", str(folder / "report.html")]
    assert main(["report", prefix, *arguments]) == 0
    with open_tab(folder) as tab:
        tab.resize(1200)
        tab.open(folder / "report.html")
        yield tab


def test_nothing_is_refused_or_fetched(tab):
    tab.run("1")
    assert tab.problems == []
    assert len(tab.requests) == 1
    tab.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hit = 1'}))")
    assert tab.run("window.hit") is None  # the policy refuses any other script
    tab.run("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit = 2\">')")
    assert tab.run("window.hit") is None
    assert tab.problems
    tab.problems.clear()
    tab.requests.clear()


def test_examples_are_leafed_through_by_keyboard(tab):
    total = tab.run("document.querySelectorAll('article').length")
    first = tab.run(SHOWN)
    assert len(first) == 5
    assert tab.run(STATUS) == f"1 to 5 of {total}"
    assert tab.run("document.querySelector('.back').ariaDisabled") == "true"
    tab.run("document.querySelector('.next').focus()")
    tab.press("Enter", "\r")
    assert tab.run(STATUS) == f"6 to 10 of {total}"
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    tab.press("ArrowLeft")
    assert tab.run(STATUS) == f"11 to 15 of {total}"
    for _ in range(3 + total // 5):
        tab.press("ArrowRight")
    assert tab.run("document.querySelector('.next').ariaDisabled") == "true"
    assert tab.run(STATUS).endswith(f"to {total} of {total}")
    for _ in range(3 + total // 5):
        tab.press("ArrowLeft")
    assert tab.run(SHOWN) == first


def test_examples_are_searched(tab):
    tab.run("document.querySelector('input').focus()")
    tab.write("document 89 ")
    assert tab.run(f"{SHOWN}.length") == 1
    assert tab.run(SHOWN)[0].startswith("Document 89")
    assert tab.run(STATUS) == "1 to 1 of 1"
    tab.run("document.querySelector('input').value = ''")
    text = tab.run("document.querySelector('article:not([hidden]) pre').textContent")
    wanted = text[:4]
    tab.write(wanted)
    assert wanted.lower() in tab.run("document.querySelector('article:not([hidden]) mark').textContent").lower()
    assert tab.run("document.querySelector('article:not([hidden]) pre').textContent").startswith(text[0])
    tab.write("no such text")
    assert tab.run(STATUS) == "none found"
    tab.run("document.querySelector('input').value = ''")
    tab.run(
        "const select = document.querySelector('select'); select.value = 'longest'; "
        "select.dispatchEvent(new Event('change'))"
    )
    assert tab.run(STATUS) == "1 to 5 of 10"
    assert tab.run(SHOWN)[-1].startswith("Document 84")
    tab.run("select.value = ''; select.dispatchEvent(new Event('change'))")


def test_page_fits_phones_and_paper_light_and_dark(tab):
    for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 25, 28)")):
        tab.prefer(scheme)
        assert tab.run("getComputedStyle(document.body).backgroundColor") == paper
        bar = tab.run("getComputedStyle(document.querySelector('svg.wide path[fill]:not([fill=none])')).fill")
        assert json.dumps(bar) not in {"none", paper}
    tab.resize(390, 844, is_phone=True)
    assert tab.run("document.documentElement.scrollWidth") == 390
    shown = "[...document.querySelectorAll('svg')].filter((each) => each.getBoundingClientRect().width > 0)"
    assert tab.run(f"new Set({shown}.map((each) => each.getAttribute('class'))).size") == 1
    assert tab.run(f"{shown}[0].getAttribute('class')") == "narrow"
    assert tab.run(f"Math.max(...{shown}.map((each) => each.getBoundingClientRect().right))") <= 390
    tab.resize(1200)
    tab.prefer("light")
    assert tab.print().startswith(b"%PDF")
