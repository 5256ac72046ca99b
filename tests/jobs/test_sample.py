"""The sample before a build: where its pieces lie, and what encoding one shows."""

import json

import numpy as np
import pytest

from dsindex.engine.inputs import find_inputs
from dsindex.engine.sample import Piece, audited_pieces, encode_piece, examine_sample, spread_pieces
from dsindex.text.audit import clip_texts
from dsindex.text.encoders import make_encoder
from dsindex.text.engines import choose_engine
from dsindex.text.tokenizer import load_tokenizer
from tests.support.golden import OWN

MIB = 1 << 20


@pytest.mark.parametrize(("sizes", "num_pieces"), [
    ([], 0), ([0, 0], 0), ([5], 1), ([70 * MIB], 2), ([10**9, 0, 10**9], 31), ([10**13], 256), ([10**8] * 10_000, 256),
], ids=["none", "empty", "tiny", "small", "two", "huge", "many"])  # fmt: skip
def test_sample_spreads_over_all_inputs(sizes, num_pieces):
    pieces = audited_pieces(sizes)
    assert len(pieces) == num_pieces
    assert all(0 <= piece.begin < piece.end <= sizes[piece.input] for piece in pieces)
    total = sum(piece.end - piece.begin for piece in pieces)
    assert total <= min(4 * MIB, sum(sizes) // 4000 + 16 * 1024)
    bases = np.concatenate([[0], np.cumsum(sizes)])
    positions = [bases[piece.input] + piece.begin for piece in pieces]
    assert positions == sorted(positions)
    if num_pieces > 2:
        assert max(np.diff(positions)) <= sum(sizes) / num_pieces + 1


@pytest.mark.parametrize("sizes", [[0, 10, 31, 0, 1], [64]])
def test_pieces_of_small_inputs_are_all_of_them(sizes):
    pieces = spread_pieces(sizes, num_pieces=8, piece_bytes=8)
    for number, size in enumerate(sizes):
        own = [piece for piece in pieces if piece.input == number]
        assert [place for piece in own for place in range(piece.begin, piece.end)] == list(range(size))


def test_encoding_a_piece_counts_what_begins_in_it(tmp_path):
    texts = ["one", "two words", "", "a longer text of several words"]
    lines = [json.dumps({"text": text, "title": "x"}) for text in texts]
    lines[2:2] = ["not a record", ""]
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines) + "\n")
    tokenizer = load_tokenizer(str(OWN.plain_tokenizer))
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "tokenizers", add_special_tokens=True))
    inputs = find_inputs([str(path)])
    size = path.stat().st_size
    # The first line belongs to whoever holds its first byte.
    first, rest, whole = (
        encode_piece(Piece(input=0, begin=begin, end=end), inputs, ["text", "title"], encoder)
        for begin, end in ((0, 1), (1, size), (0, size))
    )
    assert (first.documents, rest.documents, whole.documents) == (1, 3, 4)
    assert (first.texts, whole.texts, first.bad_records, whole.bad_records) == (2, 8, 0, 1)
    assert first.tokens + rest.tokens == whole.tokens > 0
    assert whole.longest_text == rest.longest_text > first.longest_text > 0


def test_tokens_of_shortened_texts_are_estimated(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"text": "word " * 4000}) + "\n")
    tokenizer = load_tokenizer(str(OWN.plain_tokenizer))
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "tokenizers", add_special_tokens=True))
    inputs = find_inputs([str(path)])
    piece = Piece(input=0, begin=0, end=path.stat().st_size)
    exact = encode_piece(piece, inputs, ["text"], encoder)
    short = encode_piece(
        piece, inputs, ["text"], encoder, prepare=lambda texts: clip_texts(texts, text_bytes=500, total_bytes=MIB)
    )
    assert short.longest_text < exact.longest_text / 10
    assert short.tokens == pytest.approx(exact.tokens, rel=0.05)


def test_records_that_may_not_fit_in_memory_are_no_part_of_the_sample(tmp_path, monkeypatch):
    tokenizer = load_tokenizer(str(OWN.plain_tokenizer))
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "word " * 10_000}) + "\n")
    inputs = find_inputs([str(tmp_path / "a.jsonl")])
    engine = choose_engine(tokenizer, "tokenizers", add_special_tokens=True)

    assert examine_sample(inputs, ["text"], tokenizer, engine).documents < 10
    monkeypatch.setattr("dsindex.engine.sample.SAMPLED_RECORD_BYTES", 20_000)
    assert examine_sample(inputs, ["text"], tokenizer, engine).documents == inputs[0].size_bytes / 1000
