"""What a path leads to, how texts are cut into pieces, and what a pass over a dataset measures."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from dsindex.cli.main import main
from dsindex.errors import InputError
from dsindex.formats.raw_index import create_raw_index
from dsindex.text.tokenizer import load_tokenizer, reference_of
from dsindex.tools import report_measures as measuring
from dsindex.tools.kinds import IndexedStore, PackedStore, tell_kind
from dsindex.tools.lengths import SHARES, summarize_lengths
from dsindex.tools.report_kernels import count_sources, measure_documents
from dsindex.tools.report_measures import ConsecutiveSources, measure
from dsindex.tools.token_text import cut_pieces, show_text
from tests.support.datasets import write_dataset
from tests.support.foreign_tokenizers import sentencepiece_model, tiktoken_file
from tests.support.golden import TOKENIZERS
from tests.support.pbin_files import VERSION_NAMES, write_pbin


@pytest.mark.parametrize("given", ["data", "data.bin", "data.idx", "data.manifest.json"])
def test_files_of_a_dataset_lead_to_its_prefix(given, tmp_path):
    prefix = write_dataset(tmp_path / "data", [[[1, 2]]])
    (tmp_path / "data.manifest.json").write_text("{}")
    subject = tell_kind(str(tmp_path / given))
    assert (subject.kind, subject.path) == ("MMIDIDX", prefix)


@pytest.mark.parametrize("version", VERSION_NAMES)
def test_pbin_is_known_without_its_suffix(version, tmp_path):
    path = write_pbin(tmp_path / "packed", [[1, 2], [3]], version=version)
    assert tell_kind(path).kind == "pbin"


def test_fairseqs_index_is_named(tmp_path, capsys):
    (tmp_path / "old.idx").write_bytes(b"TNTIDX\0\0" + bytes(40))
    (tmp_path / "old.bin").write_bytes(bytes(8))
    for command in ("inspect", "verify"):
        assert main([command, str(tmp_path / "old")]) == 1
        shown = "".join(capsys.readouterr())
        assert "got the TNTIDX index of fairseq, as --dataset-impl lazy or cached wrote it" in shown
        assert "MMIDIDX\n" not in shown


def test_lines_and_their_index_are_a_raw_index(tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(InputError, match="raw-index"):
        tell_kind(str(lines))
    create_raw_index(str(lines), str(tmp_path / "lines.idx"))
    for given in ("lines.jsonl", "lines.idx", "lines"):
        assert tell_kind(str(tmp_path / given)).kind == "raw index"


def test_a_folder_or_a_beginning_of_a_name_leads_to_a_choice(tmp_path):
    prefix = write_dataset(tmp_path / "out_text_document", [[[1]]])
    for given in (tmp_path, tmp_path / "out"):
        with pytest.raises(InputError, match=f"choose one of {prefix}"):
            tell_kind(str(given))
    with pytest.raises(InputError, match="check the path"):
        tell_kind(str(tmp_path / "nothing"))


TEXT = "A naïve fox, 数 and 🦊🦊\r\n  twice\x1b[2J."


@pytest.mark.parametrize("name", ["gpt2", "plain"])
def test_pieces_together_are_the_text(name):
    tokenizer = load_tokenizer(str(TOKENIZERS[name]))
    ids = reference_of(tokenizer).encode([TEXT], add_special_tokens=False)[0].tolist()
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == TEXT
    assert [token for piece in pieces for token in piece.ids] == ids
    assert len(pieces) > 5
    assert "\ufffd" not in "".join(piece.text or "" for piece in pieces)


@pytest.mark.parametrize("name", ["m.model", "cl100k_base.tiktoken"])
def test_pieces_of_other_libraries_are_the_text(name, tmp_path):
    (tmp_path / name).write_bytes(sentencepiece_model("llama2") if name == "m.model" else tiktoken_file())
    tokenizer = load_tokenizer(str(tmp_path / name))
    ids = reference_of(tokenizer).encode(["a fox and 数 twice"], add_special_tokens=False)[0].tolist()
    pieces = cut_pieces(tokenizer, ids)
    assert "".join(piece.text or "" for piece in pieces) == "a fox and 数 twice"
    after = cut_pieces(tokenizer, ids[2:], before=ids[:2])
    assert [piece.text for piece in after] == [piece.text for piece in pieces][-len(after) :]


def test_ids_outside_the_vocabulary_have_no_text():
    tokenizer = load_tokenizer(str(TOKENIZERS["plain"]))
    pieces = cut_pieces(tokenizer, [5, 10_000_000, -1, 6])
    assert [piece.text is None for piece in pieces] == [False, True, True, False]


def test_nothing_in_a_text_can_control_a_terminal():
    shown = show_text("a\x1b]0;title\x07\x9b31m\r\u202e\u200b\U000e0041\ufeffb")
    assert shown.isprintable()
    assert shown == r"a\x1b]0;title\x07\x9b31m\r\u202e\u200b\U000e0041\ufeffb"


DOCUMENTS = [[1, 2, 1, 2, 3], [], [2, 3], [], [], [1], [2, 3, 1], [2, 1, 2]]


def test_spans_of_both_stores_are_the_documents(tmp_path):
    packed = PackedStore(write_pbin(tmp_path / "data.pbin", DOCUMENTS, version="spec"))
    indexed = IndexedStore(write_dataset(tmp_path / "data", [[part] if part else [] for part in DOCUMENTS]))
    for store in (packed, indexed):
        spans = [store.document_span(number) for number in range(store.num_documents)]
        assert [store.tokens[begin:end].tolist() for begin, end in spans] == DOCUMENTS
        assert np.concatenate(list(store.document_lengths())).tolist() == list(map(len, DOCUMENTS))
        with pytest.raises(IndexError, match="from 0 to 7, got 8"):
            store.document_span(8)


@pytest.mark.parametrize("largest", [5, 1 << 16, 1 << 17, 1 << 40, (1 << 62) // 500])
def test_quantiles_are_those_of_sorted_lengths(largest):
    lengths = np.random.default_rng(1).integers(0, largest, size=501)
    ordered = sorted(lengths.tolist())
    summary = summarize_lengths(np.array_split(lengths, 7))
    expected = {f"{share * 100:g}": ordered[max(-(-round(share * 100) * 501 // 100) - 1, 0)] for share in SHARES}
    assert summary.quantiles == expected
    assert (summary.count, summary.total) == (501, sum(ordered))
    assert summary.empty == ordered.count(0)


MOST = 5


def some_documents(seed, num):
    """Documents of few different tokens and lengths, many of them equal and some empty."""
    random = np.random.RandomState(seed)
    kinds = [random.randint(0, 9, size).tolist() for size in (0, 1, 1, 2, 3, 5, 40, 41)]
    return [kinds[kind] for kind in random.randint(0, len(kinds), num)]


def measured(folder, documents, sources=None, threads=2):
    prefix = write_dataset(folder / "d", [[document] for document in documents])
    return measure(
        IndexedStore(prefix),
        sources or ConsecutiveSources([len(documents)]),
        threads=threads,
        most=MOST,
    )


@pytest.mark.parametrize(("block_documents", "block_tokens"), [(1 << 16, 1 << 24), (3, 1 << 24), (50, 7)])
@pytest.mark.parametrize("seed", [1, 2])
def test_pass_finds_what_a_slow_reference_finds(seed, block_documents, block_tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(measuring, "BLOCK_DOCUMENTS", block_documents)
    monkeypatch.setattr(measuring, "BLOCK_TOKENS", block_tokens)
    documents = some_documents(seed, 200)
    sizes = [50, 0, 150]
    found = measured(tmp_path, documents, ConsecutiveSources(sizes), threads=1 + seed)

    lengths = [len(document) for document in documents]
    assert (found.documents, found.tokens, found.lengths.empty) == (200, sum(lengths), lengths.count(0))
    ids = Counter(token for document in documents for token in document)
    assert {token: num for token, num in enumerate(found.counts.by_id.tolist()) if num} == ids
    last = Counter(document[-1] for document in documents if document)
    assert {token: num for token, num in enumerate(found.counts.last_by_id.tolist()) if num} == last
    assert (found.counts.others, found.counts.other_ids) == (0, None)
    for each in found.lengths.bins:
        own = [length for length in lengths if each.begin <= length < each.end]
        assert (each.documents, each.tokens) == (len(own), sum(own))
    assert sum(each.documents for each in found.lengths.bins) == 200 - lengths.count(0)
    numbers = [number for number in range(200) if lengths[number]]
    assert list(found.longest) == sorted(numbers, key=lambda number: (-lengths[number], number))[:MOST]
    assert list(found.shortest) == sorted(numbers, key=lambda number: (lengths[number], number))[:MOST]
    assert [(each.documents, each.tokens) for each in found.sources] == [
        (50, sum(lengths[:50])),
        (0, 0),
        (150, sum(lengths[50:])),
    ]

    copies = Counter(tuple(document) for document in documents if document)
    assert found.repeats.num_repeated == sum(num > 1 for num in copies.values())
    assert found.repeats.num_extra == sum(num - 1 for num in copies.values())
    assert found.repeats.extra_tokens == sum((num - 1) * len(document) for document, num in copies.items())
    expected = sorted((-num, -len(document), documents.index(list(document))) for document, num in copies.items())
    assert [(-each.copies, -each.num_tokens, each.first) for each in found.repeats.most] == expected[:MOST]


def test_drawn_documents_depend_on_their_numbers_alone(tmp_path, monkeypatch):
    documents = [[1, 2]] * 300 + [[]] * 5 + [[7]] * 3
    sources = ConsecutiveSources([300, 8])
    whole = measured(tmp_path, documents, sources).sources
    monkeypatch.setattr(measuring, "BLOCK_DOCUMENTS", 7)
    assert measured(tmp_path, documents, sources).sources == whole
    assert [len(each.drawn) for each in whole] == [16, 3]
    assert whole[1].drawn == (305, 306, 307)
    assert max(whole[0].drawn) - min(whole[0].drawn) > 150


def test_repeats_of_a_large_dataset_are_estimated_and_frequent_documents_counted(tmp_path, monkeypatch):
    """15,000 documents occur twice, and one makes up a third of the dataset."""
    documents = [[number // 2 % 10_000, number // 20_000, 3] for number in range(30_000)] + [[7, 7]] * 15_000
    order = np.random.RandomState(1).permutation(len(documents))
    documents = [documents[number] for number in order]
    exact = measured(tmp_path, documents).repeats
    assert (exact.one_of, exact.num_repeated, exact.num_extra) == (1, 15_001, 15_000 + 14_999)
    monkeypatch.setattr(measuring, "MOST_DIGESTS", 30_000)
    monkeypatch.setattr(measuring, "SHARE_DIGESTS", 6000)
    monkeypatch.setattr(measuring, "RUN_DOCUMENTS", 100)
    found = [measured(tmp_path, documents, threads=threads).repeats for threads in (1, 3)]
    assert found[0] == found[1]
    assert (found[0].one_of, found[0].most[0]) == (8, exact.most[0])
    for name in ("num_repeated", "num_extra", "extra_tokens"):
        assert abs(getattr(found[0], name) / getattr(exact, name) - 1) < 0.05


def slow_digest(document):
    prime, low = 0x9E3779B97F4A7C15, (1 << 64) - 1
    even, odd = len(document), prime
    for token in document:
        mixed = (even ^ token) * prime & low
        even, odd = odd, mixed ^ mixed >> 32
    mixed = (even ^ odd >> 29) * prime + odd & low
    mixed = (mixed ^ mixed >> 32) * prime & low
    return (mixed ^ mixed >> 29) | 1


@pytest.mark.parametrize("one_of", [1, 4, 1 << 20])
@pytest.mark.parametrize("seed", [1, 2])
def test_kernel_groups_the_share_one_by_one_and_frequent_documents_together(seed, one_of):
    """The slots are few and half full, so that digests meet in them."""
    random = np.random.RandomState(seed)
    documents = [tuple(random.randint(0, 4, random.choice([0, 1, 2, 3, 8, 9, 20])).tolist()) for _ in range(2000)]
    lengths = np.array([*map(len, documents)])
    tokens = np.array([token for document in documents for token in document], "<u2")

    def run(limit, slots):
        groups, counts, last = np.empty((len(documents), 4), np.int64), *np.zeros((2, 4), np.int64)
        *others, num = measure_documents(tokens, lengths, counts, last, 70, np.uint64(limit), slots, groups)
        assert counts.tolist() == np.bincount(tokens, minlength=4).tolist()
        assert last.tolist() == [sum(each[-1:] == (token,) for each in documents) for token in range(4)]
        assert others == [0, 0, 0]
        return groups[:num]

    every = run((1 << 64) - 1, np.zeros(1, np.uint64))
    digest_of = dict(
        zip((document for document in documents if document), every.view(np.uint64)[:, 0].tolist(), strict=True)
    )
    assert digest_of == {document: slow_digest(document) for document in documents if document}
    assert len(set(digest_of.values())) == len(digest_of)
    limit, frequent = (1 << 64) // one_of - 1, [digest_of[each] for each in sorted(digest_of) if len(each) < 4][::3]
    slots = np.zeros(64, np.uint64)
    for digest in frequent:
        slot = digest // 2 % 64
        while slots[slot]:
            slot = (slot + 1) % 64
        slots[slot] = digest
    expected, places = [], {}
    for number, document in enumerate(documents):
        digest = digest_of.get(document, 0)
        if digest in places and digest > limit:
            expected[places[digest]][3] += 1
        elif document and (digest <= limit or digest in frequent):
            places[digest] = len(expected)
            expected.append([digest, 70 + number, len(document), 1])
    assert run(limit, slots).view(np.uint64).tolist() == expected


def test_kernel_counts_sources_and_offers_documents_by_splitmix64():
    lengths, sources = np.array([1, 0, 2, 3, 1] * 40), np.arange(200) % 3
    worst = np.array([1 << 63, (1 << 64) - 1, 0], np.uint64)
    priorities, places = np.empty(200, np.uint64), np.empty(200, np.int64)
    counts, tokens = np.zeros((2, 3), np.int64)
    num = count_sources(2**40, lengths, sources, counts, tokens, worst, priorities, places)
    assert (counts.tolist(), tokens.tolist()) == ([67, 67, 66], [int(lengths[each::3].sum()) for each in range(3)])
    expected = []
    for place in range(200):
        mixed = (2**40 + place + 1) * 0x9E3779B97F4A7C15 % 2**64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        mixed ^= mixed >> 31
        if lengths[place] and mixed < int(worst[sources[place]]):
            expected.append((mixed, place))
    assert list(zip(priorities[:num].tolist(), places[:num].tolist(), strict=True)) == expected


@pytest.mark.parametrize("dtype", ["<i4", "<i8"])
def test_ids_outside_every_vocabulary_are_counted_together(dtype, tmp_path):
    prefix = write_dataset(tmp_path / "d", [[[5, -1, 5]], [[2**31 - 1, 1 << 20]]], dtype=dtype)
    found = measure(IndexedStore(prefix), ConsecutiveSources([2]), threads=1, most=1).counts
    assert (found.others, found.other_ids) == (3, (-1, 2**31 - 1))
    assert found.by_id.tolist() == [0, 0, 0, 0, 0, 2]


def test_dataset_without_documents_has_nothing(tmp_path):
    found = measured(tmp_path, [])
    assert (found.documents, found.tokens, found.lengths.bins, found.longest) == (0, 0, (), ())
    assert found.repeats.most == ()
