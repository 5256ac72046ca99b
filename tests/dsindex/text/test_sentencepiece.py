"""SentencePiece models: the same tokens as the sentencepiece library, with every engine."""

import re

import pyarrow as pa
import pytest
import sentencepiece

from dsindex.errors import TokenizerError
from dsindex.text.encoders import choose_engine, make_encoder
from dsindex.text.tokenizer import TokenizerOptions, decode, load_tokenizer, shared_tokenizer
from tests.dsindex.text.conversion_texts import fixed_texts, swept_texts
from tests.support.foreign_tokenizers import FAST_SHAPES, SENTENCEPIECE_SHAPES, sentencepiece_model, with_runs


def loaded(tmp_path, shape):
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(shape))
    return load_tokenizer(str(tmp_path / "tokenizer.model"))


def assert_equal_to_the_library(tokenizer, texts, *, engine="auto"):
    chosen = choose_engine(tokenizer, engine, add_special_tokens=True)
    batch = make_encoder(tokenizer, chosen).encode(pa.array(texts, pa.large_string()))
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    expected = processor.encode(list(texts), num_threads=1)
    begin = 0
    for text, wanted, length in zip(texts, expected, batch.lengths.tolist(), strict=True):
        assert batch.tokens[begin : begin + length].tolist() == wanted, repr(text)
        begin += length


def pieces_of(tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    return [processor.id_to_piece(number).replace("▁", " ") for number in range(processor.get_piece_size())]


@pytest.mark.parametrize("shape", SENTENCEPIECE_SHAPES)
def test_tokens_are_those_of_the_library(tmp_path, shape):
    tokenizer = loaded(tmp_path, shape)
    assert_equal_to_the_library(tokenizer, fixed_texts(pieces_of(tokenizer), seed=1))


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", FAST_SHAPES)
def test_code_points_agree(tmp_path, shape):
    tokenizer = loaded(tmp_path, shape)
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).differing == ()
    for texts in swept_texts(begin=FAST_SHAPES.index(shape), every=50):
        assert_equal_to_the_library(tokenizer, texts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", FAST_SHAPES)
def test_every_code_point_agrees_in_one_of_the_shapes(tmp_path, shape):
    """With `begin=0, every=1` all were compared in each shape, which takes minutes."""
    tokenizer = loaded(tmp_path, shape)
    for texts in swept_texts(begin=FAST_SHAPES.index(shape), every=len(FAST_SHAPES)):
        assert_equal_to_the_library(tokenizer, texts)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ("t5", "is of the type unigram, not BPE"),
        ("unigram-bytes", "is of the type unigram, not BPE"),
        ("nfkc", "normalizes texts with a table of characters"),
        ("plain-bpe", "has no byte fallback"),
        ("spaces-removed", "removes repeated spaces"),
        ("prefix-and-symbols", r"has a user-defined symbol, '\[INST\]', and adds a space before texts"),
        ("some-runs", "has user-defined runs of spaces of some lengths only"),
        ("suffix", "puts spaces after words"),
    ],
)
def test_what_was_not_compared_is_left_to_the_library(tmp_path, shape, reason):
    tokenizer = loaded(tmp_path, shape)
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.name, engine.version) == ("sentencepiece", engine.reference_version)
    assert re.search(reason, engine.reason)
    with pytest.raises(TokenizerError, match=f"{reason}; use --engine reference"):
        choose_engine(tokenizer, "gigatoken", add_special_tokens=True)


@pytest.mark.parametrize("shape", FAST_SHAPES)
def test_published_shapes_are_encoded_by_gigatoken(tmp_path, shape):
    tokenizer = loaded(tmp_path, shape)
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert (engine.name, engine.reference, engine.prefix, engine.suffix) == ("gigatoken", "sentencepiece", (), ())
    texts = ["", "<s>a</s>", "The mill  stood\n"]
    assert_equal_to_the_library(tokenizer, texts, engine="gigatoken")
    assert_equal_to_the_library(tokenizer, texts, engine="reference")


@pytest.mark.parametrize(
    "lengths", [(*range(2, 15), 16), tuple(range(2, 17)), (2, 4, 8, 16), (2, 3, 7), (3, 5)], ids=str
)
def test_runs_of_marks_may_share_the_lowest_score(tmp_path, lengths):
    (tmp_path / "tokenizer.model").write_bytes(with_runs(*lengths))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.model"))
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == "gigatoken", engine.reason
    marks = [
        f"{before}{' ' * count}{after}" for count in range(120) for before in ("", "a", "▁") for after in ("", "b")
    ]
    assert_equal_to_the_library(tokenizer, [*marks, *fixed_texts(pieces_of(tokenizer), seed=2)])


def test_other_pieces_of_one_score_are_left_to_the_library(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(with_runs(2, 3, score=-5.0))
    engine = choose_engine(load_tokenizer(str(tmp_path / "tokenizer.model")), "auto", add_special_tokens=True)
    assert engine.reason == "its SentencePiece model gives two pieces the same score"


def test_file_describes_itself(tmp_path):
    tokenizer = loaded(tmp_path, "gemma")
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    assert (tokenizer.name, tokenizer.library, tokenizer.json) == ("tokenizer.model", "sentencepiece", b"")
    assert tokenizer.vocabulary_size == processor.get_piece_size()
    assert (tokenizer.eod_id, tokenizer.eod_token) == (1, "</s>")
    assert tokenizer.special_tokens[:2] == ("<start_of_turn>", "<table>")
    assert "<s>" not in tokenizer.special_tokens
    assert decode(tokenizer, processor.encode("The mill stood")) == "The mill stood"
    with pytest.raises(TokenizerError, match=r"expected a tokenizer\.json, got a tokenizer of sentencepiece"):
        shared_tokenizer(tokenizer)


def test_eod_is_a_piece(tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(sentencepiece_model("mistral"))
    assert load_tokenizer(str(path), eod_token="[INST]").eod_id == 3
    with pytest.raises(TokenizerError, match=r"EOD token '\[INST' in the vocabulary.*near it: '\[INST\]'"):
        load_tokenizer(str(path), eod_token="[INST")


@pytest.mark.parametrize("kind", ["SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer"])
def test_types_of_megatron_read_it(tmp_path, kind):
    plain = loaded(tmp_path, "llama2")
    path = str(tmp_path / "tokenizer.model")
    assert load_tokenizer(path, options=TokenizerOptions(tokenizer_type=kind)) == plain


@pytest.mark.parametrize("kind", ["HuggingFaceTokenizer", "TikTokenizer", "GPT2BPETokenizer"])
def test_other_types_refuse_it(tmp_path, kind):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentencepiece_model("llama2"))
    message = f"for --tokenizer-type {kind}, got a SentencePiece file; use --tokenizer-type SentencePieceTokenizer"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(str(path), options=TokenizerOptions(tokenizer_type=kind))


WHOLE = sentencepiece_model("llama2")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        *((WHOLE[: int(len(WHOLE) * share)], "") for share in (0.0, 0.01, 0.3, 0.5, 0.99)),
        (b"\x08\x80", "a number that does not end"),
        (b"\x08" + b"\xff" * 11, "a number that does not end"),
        (b"\x12\x05ab", "expected 5 bytes at byte 2, got 2"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7fab", "expected 9223372036854775807 bytes"),
        (b"\x0b", "expected a protobuf field of a known kind at byte 1, got kind 3"),
        (b"\x08\x01", "expected bytes as field 1 of a SentencePiece model, got 1"),
        (b"\x0a\x05\x15abcd\x0a\x02\x10\x01", "expected bytes as field 2 of a SentencePiece model, got 1"),
        (b"\x0a\x09\x11abcdefgh", "a score of 4 bytes"),
        (b"\x0a\x03\x0a\x01\xff", "can't decode byte 0xff"),
        (b"\x1a\x00", "without pieces"),
    ],
)
def test_damaged_models_are_refused(tmp_path, content, expected):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    message = f"tokenizer.model: expected a SentencePiece model, but it cannot be read .*{expected}"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(str(path))
