"""`dsindex report`: what is on the page, which is the same however it was made, and what is refused."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.amounts import split_names
from dsindex.cli.main import main
from dsindex.datasets.indexed import IndexedDataset
from dsindex.options.build import BuildConfig
from dsindex.tools import report as report_dataset
from dsindex.tools.lengths import LengthBin
from dsindex.tools.page.page import Block, Example, Page, Section, Table, is_page, write_page
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, MODALITIES, OWN
from tests.support.jobs import config_of, run_config
from tests.support.pages import ReadPage

pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")


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


GOLDEN_EOD = str(GOLDEN / "eod_text_document")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The prefix of a dataset whose documents all occur twice, in two inputs."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "copy.jsonl"
    copy.write_bytes(OWN.docs.read_bytes())
    config = config_of(BuildConfig, (str(OWN.docs), str(copy)), append_eod=True, output_prefix=str(folder / "docs"))
    run_config(config)
    return f"{config.output_prefix}_text_document"


def report(tmp_path, *arguments, code=0):
    output = tmp_path / "report.html"
    assert main(["report", *arguments, "-o", str(output)]) == code
    page = ReadPage(output.read_bytes())
    assert page.unbalanced == []
    return page


def test_page_says_what_the_manifest_and_the_tokens_say(built, tmp_path, capsys):
    page = report(tmp_path, built)
    manifest = json.loads(Path(f"{built}.manifest.json").read_bytes())["content"]
    documents, tokens = manifest["documents"], manifest["tokens"]
    assert page.texts["h2"] == [built]
    assert page.texts["h3"] == [
        *("Records", "Sources", "Document lengths", "Tokens", "Short, long and repeated documents", "Run", "Digests"),
        "Examples",
    ]
    [first, second] = [file["path"] for file in manifest["inputs"]]
    assert page.row(first)[1:] == [str(manifest["inputs"][0]["lines"]), *page.row(second)[2:]]
    by_source = [row for row in page.rows if row[0] in {first, second} and len(row) == 6]
    assert [row[1] for row in by_source] == [f"{documents // 2:,}"] * 2
    assert [row[2] for row in by_source] == [f"{tokens // 2:,}"] * 2
    assert [row[3] for row in by_source] == ["50.0%"] * 2
    assert page.row(".bin")[2] == manifest["digests"]["bin"]["xxh3_128"]
    assert any("Documents that occur more than once" in text for text in page.texts["p"])
    dataset = IndexedDataset(built)
    lengths = np.array([len(dataset.document(number)) for number in range(documents)])
    assert page.row("share")[-1] == "100%"
    assert page.row("tokens")[1:] == [
        f"{each:,}"
        for each in np.quantile(lengths, [0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1], method="inverted_cdf")
    ]
    most = np.bincount(np.fromfile(f"{built}.bin", "<u2"))
    token = int(most.argmax())
    assert page.row(str(token))[2] == f"{most[token]:,}"
    shown = capsys.readouterr().out
    ends = np.cumsum(lengths)
    all_tokens = np.fromfile(f"{built}.bin", "<u2")
    kinds = {all_tokens[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True) if length}
    repetitions = np.count_nonzero(lengths) - len(kinds)
    assert repetitions >= documents // 2 - 5
    assert f"{documents:,} documents, {tokens:,} tokens, {repetitions:,} repetitions" in shown


def test_examples_are_documents_of_the_inputs(built, tmp_path):
    page = report(tmp_path, built)
    texts = [json.loads(line)["text"] for line in OWN.docs.read_bytes().splitlines()]
    articles = page.with_tag("article")
    assert len(articles) == len(page.texts["pre"]) > 60
    kinds = {kind for article in articles for kind in str(article["data-kinds"]).split()}
    assert kinds == {"drawn", "longest", "shortest", "repeated"}
    shown = [text.removeprefix("\n") for text in page.texts["pre"]]
    short = [text for text in shown if 40 < len(text) < 400 and text.isascii() and text.isprintable()]
    assert len(short) > 3
    assert all(text.removesuffix("<|endoftext|>") in texts for text in short)
    assert sum("2 copies" in text for text in page.texts["article"]) >= 10
    assert any(f"{OWN.docs}, line " in text for text in page.texts["article"])


def test_page_does_not_depend_on_threads_or_time(built, tmp_path, monkeypatch):
    pages = []
    for cpus in (1, 3):
        monkeypatch.setattr(report_dataset, "available_cpus", lambda cpus=cpus: cpus)
        report(tmp_path, built)  # the second time it replaces its own page
        pages.append((tmp_path / "report.html").read_bytes())
    assert pages[0] == pages[1]
    assert os.listdir(tmp_path) == ["report.html"]


def test_page_needs_nothing_else_and_can_be_read_without_seeing_it(built, tmp_path):
    page = report(tmp_path, built)
    for tag, attributes in page.elements:
        for name in ("src", "href", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#") or value == "data:,", (tag, value)
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [name for _, each in page.elements for name in str(each.get("aria-labelledby") or "").split()]
    assert set(named) <= set(ids)
    pictures = [each for each in page.with_tag("svg") if each.get("role") == "img"]
    assert len(pictures) == len(page.with_tag("svg")) == 2 * len(page.with_tag("figure")) >= 6
    assert len(page.texts["desc"]) == len(pictures)
    assert all(len(text) > 20 for text in page.texts["desc"])
    assert len(page.with_tag("caption")) == len(page.with_tag("table"))
    assert all(each.get("scope") in {"row", "col"} for each in page.with_tag("th"))
    assert page.with_tag("html") == [{"lang": "en"}]
    [policy] = [each["content"] for each in page.with_tag("meta") if "http-equiv" in each]
    assert str(policy).startswith("default-src 'none'; style-src 'sha256-")


def test_hostile_text_is_shown_as_text(tmp_path):
    texts = [
        "<script>alert(1)</script> ]]> </pre></article> <!-- & &lt; \u2028 x",
        "</script><svg onload=alert(2)> \x1b[2J \u202egnp.exe \u200b \x00 \udcff".encode("utf-8", "replace").decode(),
        "\n\n  begins\twith empty lines\r\nand goes on",
    ]
    source = tmp_path / "<img src=x onerror=alert(3)>&amp;.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 2))
    other = tmp_path / "]]><b>.jsonl"
    other.write_text('{"text": "other"}\n')
    options = {"tokenizer_model": str(MODALITIES / "gpt2"), "output_prefix": str(tmp_path / "<script>x")}
    config = config_of(BuildConfig, (str(source), str(other)), **options)
    run_config(config)
    page = report(tmp_path, f"{config.output_prefix}_text_document")
    assert len(page.with_tag("script")) == 1
    assert not {"img", "b"} & {tag for tag, _ in page.elements}
    shown = {text.removeprefix("\n") for text in page.texts["pre"]}
    assert texts[0].replace("\u2028", r"\u2028") in shown
    assert r"</script><svg onload=alert(2)> \x1b[2J \u202egnp.exe \u200b \x00 ?" in shown
    assert "\n\n  begins\twith empty lines\\r\nand goes on" in shown
    assert any(text.endswith("onerror=alert(3)>&amp;.jsonl") for text in page.texts["text"])  # in a picture
    assert "alert(3)" not in "".join(str(each) for _, each in page.elements if "aria-label" not in each)


@pytest.mark.parametrize("kind", ["other file", "edited report", "folder", "link"])
def test_files_of_others_are_never_replaced(kind, built, tmp_path, capsys):
    output = tmp_path / "report.html"
    if kind == "folder":
        output.mkdir()
    elif kind == "other file":
        output.write_text("<!DOCTYPE html>\nmine")
    else:
        report(tmp_path, built)
        if kind == "link":
            output.rename(tmp_path / "real.html")
            output.symlink_to(tmp_path / "real.html")
        else:
            output.write_bytes(output.read_bytes() + b"<!-- mine -->")
    before = sorted(tmp_path.rglob("*")), None if kind == "folder" else output.read_bytes()
    assert main(["report", built, "-o", str(output)]) == 1
    assert (sorted(tmp_path.rglob("*")), None if kind == "folder" else output.read_bytes()) == before
    assert "report.html: expected the name of a file" in (shown := capsys.readouterr().err) or "exists already" in shown


def test_foreign_dataset_is_reported_from_its_tokens(tmp_path, capsys):
    page = report(tmp_path, GOLDEN_EOD)
    assert page.texts["h3"] == [
        *("Sources", "Document lengths", "Tokens", "Short, long and repeated documents", "Examples")
    ]
    assert "no manifest names the tokenizer" in capsys.readouterr().out
    assert all(word.isdigit() for text in page.texts["pre"] for word in text.split())
    page = report(tmp_path, GOLDEN_EOD, "--tokenizer-model", str(OWN.plain_tokenizer))
    assert any("<|endoftext|>" in text for text in page.texts["pre"])
    assert page.row("0")[1] == "<|endoftext|>"


def test_instruction_data_has_the_learned_tokens_of_each_source(tmp_path):
    lines = CONVERSATIONS.read_bytes().splitlines(keepends=True)
    inputs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, own in zip(inputs, (lines[:50], lines[50:120]), strict=True):
        path.write_bytes(b"".join(own))
    tokenizer, prefix = str(OWN.plain_tokenizer), str(tmp_path / "chat")
    dsindex.instruct(list(map(str, inputs)), config=SPEC, tokenizer=tokenizer, output_prefix=prefix)
    masks = [*IndexedDataset(f"{prefix}_loss_mask")]
    for given in (prefix, f"{prefix}_text_document"):
        page = report(tmp_path, given)
        for path, own in zip(inputs, (masks[:50], masks[50:]), strict=True):
            learned, tokens = sum(int(mask.sum()) for mask in own), sum(map(len, own))
            [row] = [row for row in page.rows if row[0] == str(path) and row[2] == f"{tokens:,}"]
            assert row[5:7] == [f"{learned:,}", f"{learned / tokens:.1%}"]
    write_dataset(Path(f"{prefix}_loss_mask"), [[[0, 1, 1]], [[0]]], dtype=np.uint8)
    assert any("masks, got 4" in text for text in report(tmp_path, prefix, code=1).texts["li"])


@pytest.mark.parametrize(("arguments", "sentence"), [
    ([str(MODALITIES / "nonempty.jsonl")], "expected a dataset of tokens (.bin and .idx, or .pbin), got a raw ind"),
    (["{tmp}/none"], "there is no dataset"),
    ([GOLDEN_EOD, f"{GOLDEN_EOD}.bin"], "expected every dataset once, got it twice"),
    ([GOLDEN_EOD] * 25, "expected at most 24 datasets on a page, got 25"),
    ([GOLDEN_EOD, "--cache", "{tmp}"], "expected index caches of the datasets, got none"),
    ([GOLDEN_EOD, "--cache", "{tmp}/none"], "expected a folder with index caches, found none"),
    ([GOLDEN_EOD, "--tokenizer-model", "{tmp}/none"], "none"),
])  # fmt: skip
def test_bad_arguments_are_told_before_the_work(arguments, sentence, tmp_path, cli):
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    shown = cli(["report", *given, "-o", str(tmp_path / "report.html")], 1).err
    assert sentence in shown
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())


@pytest.fixture
def copied(built, tmp_path):
    """A copy of the dataset that may be damaged."""
    folder = tmp_path / "data"
    shutil.copytree(Path(built).parent, folder)
    return str(folder / Path(built).name)


def test_damage_is_a_finding(copied, tmp_path, capsys):
    path = Path(f"{copied}.idx")
    path.write_bytes(path.read_bytes()[:-50])
    page = report(tmp_path, copied, GOLDEN_EOD, code=1)
    shown = capsys.readouterr().out
    assert f"{copied}: not read" in shown
    assert f"FOUND: {copied}.idx" in shown
    assert len([each for each in page.with_tag("ul") if each.get("class") == "findings"]) == 1
    assert len(page.texts["pre"]) > 20  # of the other one


def test_ids_that_no_tokenizer_has_are_a_finding(tmp_path, capsys):
    prefix = write_dataset(tmp_path / "d", [[[5, -7, 60000]], [[]], [[1 << 24] * 3]], dtype=np.int32)
    report(tmp_path, prefix, "--tokenizer-model", str(OWN.plain_tokenizer), code=1)
    shown = capsys.readouterr().out
    assert "expected ids of a vocabulary, got 4 tokens with ids from -7 to 16,777,216" in shown
    assert "got 1 token with larger ids, up to 60,000" in shown


def test_datasets_are_compared_and_blends_shown(built, tmp_path):
    cache = str(tmp_path / "cache")
    index = ["index", "--data-path", "0.25", built, "0.75", GOLDEN_EOD, "--seq-length", "64"]
    index += ["--num-samples", "400,40,0", "--split", "90,10,0", "--data-cache-path", cache]
    assert main(index) == 0
    page = report(tmp_path, built, GOLDEN_EOD, "--cache", cache)
    assert page.texts["h2"] == ["Mixture and splits", "Side by side", built, GOLDEN_EOD]
    splits = {(row[0], row[1]): row for row in page.rows if len(row) == 8 and row[1] in {"train", "valid"}}
    assert len(splits) == 4
    lengths = IndexedDataset(built).sequence_lengths
    part = int(lengths[: round(0.9 * len(lengths))].sum())
    name = split_names([built, GOLDEN_EOD])[1][0]
    [intended, _, tokens, samples, epochs, cut] = splits[name, "train"][2:]
    num_samples = int(samples.split()[0].replace(",", ""))
    assert (intended, tokens, samples) == ("90.00%", f"{part:,}", f"{num_samples:,} of 64")
    assert (num_samples >= 100, epochs, cut[-1]) == (True, f"{num_samples * 64 / part:.3f}", "%")
    blends = [row for row in page.rows if len(row) == 6 and row[0] == built and row[5] == "25.000%"]
    assert [[*row[1:3], row[4]] for row in blends] == [["100", "6,400", "25.000%"], ["10", "640", "25.000%"]]
    assert blends[0][3] == f"{6400 / part:.3f}"
    damaged = next(Path(cache).glob("*BlendedDataset-train-dataset_index.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    page = report(tmp_path, built, GOLDEN_EOD, "--cache", cache, code=1)
    assert "Caches that cannot be read" in page.texts["h3"]


def test_function_does_what_the_command_does(built, tmp_path):
    report(tmp_path, built)
    output = tmp_path / "function.html"
    written = dsindex.report(built, output=output)
    assert output.read_bytes() == (tmp_path / "report.html").read_bytes()
    assert (written.ok, written.prefixes, written.size_bytes) == (True, (built,), output.stat().st_size)
    assert str(written).startswith(f"{output}: 1 dataset, ")
    with pytest.raises(dsindex.DsindexError, match="choose another output"):
        dsindex.report(built, output=__file__)
