"""`dsindex report`: what is on the page, which is the same however it was made, and what is refused."""

import json
import re
import shutil
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.commands import report_measures
from dsindex.commands.report_measures import MOST_NAMED, Sources, measure
from dsindex.datasets.detect import DetectedDataset
from dsindex.datasets.documents import open_documents
from dsindex.datasets.indexed import IndexedDataset
from dsindex.options.build import BuildConfig
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, MODALITIES, OWN
from tests.support.jobs import config_of, run_config

GOLDEN_EOD = str(GOLDEN / "eod_text_document")


class Page(HTMLParser):
    """The elements, the rows of all tables, and the texts of elements; all text of a page is escaped."""

    def __init__(self, content):
        super().__init__()
        self.tags, self.content = [], content.decode()
        self.feed(self.content)
        rows = re.findall("<tr>(.*?)</tr>", self.content, re.DOTALL)
        cells = re.compile("<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
        self.rows = [list(map(unescape, cells.findall(row))) for row in rows]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def texts(self, tag):
        contents = re.findall(rf"<{tag}(?: [^>]*)?>\n?(.*?)</{tag}>", self.content, re.DOTALL)
        return contents if tag == "tr" else list(map(unescape, contents))

    def row(self, name):
        return next(row for row in self.rows if row[0] == name)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The prefix of a dataset whose documents all occur twice, in two inputs."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "copy.jsonl"
    copy.write_bytes(OWN.docs.read_bytes())
    options = {"append_eod": True, "output_prefix": str(folder / "docs")}
    return run_config(config_of(BuildConfig, (str(OWN.docs), str(copy)), **options)).prefixes[0]


def report(tmp_path, *arguments, code=0):
    output = tmp_path / "report.html"
    assert main(["report", *arguments, "-o", str(output)]) == code
    return Page(output.read_bytes())


def test_page_says_what_the_manifest_and_the_tokens_say(built, tmp_path, capsys):
    page = report(tmp_path, built)
    manifest = json.loads(Path(f"{built}.manifest.json").read_bytes())["content"]
    documents, tokens = manifest["documents"], manifest["tokens"]
    for file in manifest["inputs"]:
        bytes_per_token = f"{file['tokenized_bytes'] / (tokens // 2):.2f}"
        assert page.row(file["path"])[1:] == [f"{documents // 2:,}", f"{tokens // 2:,}", "50.00%", bytes_per_token]
    dataset = IndexedDataset(built)
    lengths = np.array([len(dataset.document(number)) for number in range(documents)])
    shares = [0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1]
    assert page.row("tokens")[1:] == [f"{length:,}" for length in np.quantile(lengths, shares, method="inverted_cdf")]
    counts = np.bincount(np.fromfile(f"{built}.bin", "<u2"))
    token = int(counts.argmax())
    [row] = [row for row in page.rows if row[1:2] == [str(token)]]
    assert row[2] == f"{counts[token]:,}"
    assert page.row("<|endoftext|>")[4] == "100.00%"
    kinds = {dataset.document(number).tobytes() for number in range(documents) if lengths[number]}
    repetitions = np.count_nonzero(lengths) - len(kinds)
    assert f"{documents:,} documents, {tokens:,} tokens, {repetitions:,} repetitions" in capsys.readouterr().out
    texts = [json.loads(line)["text"] + "<|endoftext|>" for line in OWN.docs.read_bytes().splitlines()]
    examples = page.texts("pre")
    assert sum(text in texts for text in examples) > 3
    assert any("2 copies" in title for title in page.texts("summary"))
    before = (tmp_path / "report.html").read_bytes()
    report(tmp_path, built)
    written = dsindex.report(built, output=tmp_path / "function.html")
    assert (tmp_path / "report.html").read_bytes() == (tmp_path / "function.html").read_bytes() == before
    assert (written.ok, written.datasets[0].name, written.size_bytes) == (True, built, len(before))


def test_page_shows_hostile_texts_and_runs_none(tmp_path):
    texts = ["<img src=x onerror=alert(1)>", "</pre></details></script><svg onload=alert(2)> \x1b[2J \u202egnp\u200b ?"]
    source = tmp_path / "<img src=x onerror=alert(3)>&amp;.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts * 2))
    options = {"tokenizer_model": str(MODALITIES / "gpt2"), "output_prefix": str(tmp_path / "<script>x")}
    page = report(tmp_path, *run_config(config_of(BuildConfig, source, **options)).prefixes)
    assert not {"img", "script"} & {tag for tag, _ in page.tags}
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    examples = page.texts("pre")
    assert texts[0] in examples
    assert r"</pre></details></script><svg onload=alert(2)> \x1b[2J \u202egnp\u200b ?" in examples
    assert "alert(3)" in page.row(str(source))[0]
    assert re.search(r"default-src 'none'", unescape((tmp_path / "report.html").read_text()))


def test_files_of_others_are_never_replaced(tmp_path, cli):
    output = tmp_path / "report.html"
    output.write_text("<!DOCTYPE html>\nmine")
    assert "report.html: exists already and is not a report" in cli(["report", GOLDEN_EOD, "-o", str(output)], 1).err
    below = cli(["report", GOLDEN_EOD, "-o", str(output / "page.html")], 1).err
    assert re.match("error: .*/report.html: a file is in place of this folder", below), "before the data are read"
    assert output.read_text() == "<!DOCTYPE html>\nmine"
    assert "cannot be written (Is a directory)" in cli(["report", GOLDEN_EOD, "-o", str(tmp_path)], 1).err


def test_instruction_data_has_the_learned_tokens_of_each_source(tmp_path):
    lines = CONVERSATIONS.read_bytes().splitlines(keepends=True)
    inputs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, part_lines in zip(inputs, (lines[:50], lines[50:120]), strict=True):
        path.write_bytes(b"".join(part_lines))
    tokenizer, prefix = str(OWN.plain_tokenizer), str(tmp_path / "chat")
    dsindex.instruct(list(map(str, inputs)), config=SPEC, tokenizer=tokenizer, output_prefix=prefix)
    masks = [*IndexedDataset(f"{prefix}_loss_mask")]
    for argument in (prefix, f"{prefix}_text_document"):
        page = report(tmp_path, argument)
        for path, part_masks in zip(inputs, (masks[:50], masks[50:]), strict=True):
            learned, tokens = sum(int(mask.sum()) for mask in part_masks), sum(map(len, part_masks))
            assert page.row(str(path))[2:5:2] == [f"{tokens:,}", f"{learned / tokens:.2%}"]
        assert len(page.texts("mark")) > 20, "what is trained on is highlighted in the examples"
        assert "message_construction" in page.content
    write_dataset(Path(f"{prefix}_loss_mask"), [[[0, 1, 1]], [[0]]], dtype=np.uint8)
    report(tmp_path, prefix, code=1)


def test_damage_is_a_finding(built, tmp_path, capsys):
    folder = tmp_path / "data"
    shutil.copytree(Path(built).parent, folder)
    path = folder / f"{Path(built).name}.idx"
    path.write_bytes(path.read_bytes()[:-50])
    page = report(tmp_path, str(path.with_suffix("")), GOLDEN_EOD, code=1)
    output = capsys.readouterr().out
    assert f"{path.with_suffix('')}: not read" in output
    assert f"FOUND: {path}" in output
    assert [attributes for _, attributes in page.tags if attributes.get("class") == "found"]
    assert len(page.texts("pre")) > 5  # of the other one


def test_ids_that_no_tokenizer_has_are_a_finding(tmp_path, capsys):
    prefix = write_dataset(tmp_path / "d", [[[5, -7, 60000]], [[]], [[1 << 24] * 3]], dtype=np.int32)
    report(tmp_path, prefix, "--tokenizer-model", str(OWN.plain_tokenizer), code=1)
    assert "5 tokens outside of the tokenizer's vocabulary" in capsys.readouterr().out


def test_datasets_are_compared_and_blends_shown(built, tmp_path, cli, capsys):
    cache = str(tmp_path / "cache")
    flags = "--seq-length 64 --plain-names --num-samples 400,40,0 --split 90,10,0"
    cli(f"index --data-path 0.25 {built} 0.75 {GOLDEN_EOD} {flags} --data-cache-path {cache}")
    page = report(tmp_path, built, GOLDEN_EOD, "--cache", cache)
    captions = page.texts("caption")
    draws = [f"What {split} draws: {num} samples of 64 tokens" for split, num in {"train": 400, "valid": 40}.items()]
    assert captions[:3] == [*draws, "Datasets"]
    lengths = IndexedDataset(built).sequence_lengths
    longer = next(line for line in page.texts("td") if "64 tokens, the length of a sample" in line)
    assert re.search(rf"about {np.count_nonzero(lengths >= 64):,} longer", longer)
    many = [row[0] for row in page.rows if len(row) == 6 and row[4] not in {"epochs", "-"} and float(row[4]) > 4]
    assert many == [line.split()[1] for line in page.texts("p") if line.startswith("warning: ")]
    part = int(lengths[: round(0.9 * len(lengths))].sum())
    drawn = page.row(built)
    assert drawn[1:5] == ["100", "25.00%", "25.00%", f"{6400 / part:,.2f}"]
    assert drawn[5].endswith("%")
    damaged = next(Path(cache).glob("*BlendedDataset-train-dataset_index.npy"))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    report(tmp_path, built, GOLDEN_EOD, "--cache", cache, code=1)
    assert "dataset_index.npy" in capsys.readouterr().out


def test_page_of_many_datasets_describes_the_largest(tmp_path):
    names = [write_dataset(tmp_path / f"d{number}", [[[1] * (number + 1)]], dtype=np.uint16) for number in range(60)]
    page = report(tmp_path, *map(str, names))
    assert page.texts("h2") == list(map(str, names[10:]))
    assert "10 smaller datasets not described below" in page.content
    assert [row[0] for row in page.rows if row[0] in map(str, names)] == list(map(str, names))


@pytest.mark.parametrize("block_tokens", [1 << 24, 50, 7])
@pytest.mark.parametrize("seed", [1, 2])
def test_pass_finds_what_a_slow_reference_finds(seed, block_tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(report_measures, "BLOCK_TOKENS", block_tokens)
    random = np.random.RandomState(seed)
    kinds = [random.randint(0, 9, size).tolist() for size in (0, 1, 1, 2, 3, 5, 40, 41)]
    documents = [kinds[kind] for kind in random.randint(0, len(kinds), 200)]
    lengths = [len(document) for document in documents]
    masks = np.arange(sum(lengths)) % 3 == 0
    prefix = write_dataset(tmp_path / "d", [[document] for document in documents])
    sources = Sources(names=["0", "1", "2"], num_documents=[50, 0, 150])
    reader = open_documents(DetectedDataset(kind="MMIDIDX", path=prefix))
    measures = measure(reader, sources, threads=1 + seed, masks=masks)
    assert (measures.documents, measures.tokens, measures.lengths.empty) == (200, sum(lengths), lengths.count(0))
    ids = Counter(token for document in documents for token in document)
    assert {token: num for token, num in enumerate(measures.counts.tolist()) if num} == ids
    last = Counter(document[-1] for document in documents if document)
    assert {token: num for token, num in enumerate(measures.last_counts.tolist()) if num} == last
    numbers = [number for number in range(200) if lengths[number]]
    assert list(measures.longest) == sorted(numbers, key=lambda number: (-lengths[number], number))[:MOST_NAMED]
    assert list(measures.shortest) == sorted(numbers, key=lambda number: (lengths[number], number))[:MOST_NAMED]
    head, tail = sum(lengths[:50]), sum(lengths[50:])
    first, last = [50, head, int(masks[:head].sum())], [150, tail, int(masks[head:].sum())]
    assert measures.by_source.tolist() == [first, [0, 0, 0], last]
    copies = Counter(tuple(document) for document in documents if document)
    assert measures.repetitions == sum(num - 1 for num in copies.values())
    expected = sorted((-num, -len(document), documents.index(list(document))) for document, num in copies.items())
    most_repeated = [(first, -num) for num, _, first in expected[:MOST_NAMED]]
    assert list(measures.repeated) == most_repeated
