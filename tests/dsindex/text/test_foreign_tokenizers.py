"""SentencePiece models, files of ranks and GPT-2 files: the same tokens as their own libraries, with every engine."""

import json
import re
import unicodedata

import pyarrow as pa
import pytest
import sentencepiece
import tiktoken
import tokenizers
from tokenizers import models, pre_tokenizers

from dsindex.engine.source import describe_folder
from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.agreement import DIFFERING, PATTERNS, read_ranges
from dsindex.text.conversion import CL100K_PATTERN, MEGATRON_PATTERNS, R50K_PATTERN, eod_of_family, read_definition
from dsindex.text.encoders import choose_engine, make_encoder
from dsindex.text.tokenizer import TokenizerOptions, decode, load_tokenizer, reference_of, shared_tokenizer
from tests.agreement.texts import swept_texts
from tests.dsindex.text.conversion_texts import fixed_texts
from tests.support import text_tokenizers as trained
from tests.support.foreign_tokenizers import (
    FAST_SHAPES,
    SENTENCEPIECE_SHAPES,
    rank_entries,
    ranks,
    sentencepiece_model,
    tekken_file,
    tiktoken_file,
    with_runs,
)
from tests.support.golden import TOKENIZERS


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
    """With `begin=0, every=1` all were compared in each shape, which takes minutes."""
    tokenizer = loaded(tmp_path, shape)
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).differing == ()
    for texts in swept_texts(begin=FAST_SHAPES.index(shape), every=50):
        assert_equal_to_the_library(tokenizer, texts)


@pytest.mark.parametrize(("shape", "reason"), [
    ("t5", "is of the type unigram, not BPE"),
    ("unigram-bytes", "is of the type unigram, not BPE"),
    ("nfkc", "normalizes texts with a table of characters"),
    ("plain-bpe", "has no byte fallback"),
    ("spaces-removed", "removes repeated spaces"),
    ("prefix-and-symbols", r"has a user-defined symbol, '\[INST\]', and adds a space before texts"),
    ("some-runs", "has user-defined runs of spaces of some lengths only"),
    ("suffix", "puts spaces after words"),
])  # fmt: skip
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


@pytest.mark.parametrize("kind", ["HuggingFaceTokenizer", "TikTokenizer", "GPT2BPETokenizer"])
def test_other_types_refuse_it(tmp_path, kind):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentencepiece_model("llama2"))
    message = f"for --tokenizer-type {kind}, got a SentencePiece file; use --tokenizer-type SentencePieceTokenizer"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(str(path), options=TokenizerOptions(tokenizer_type=kind))


WHOLE = sentencepiece_model("llama2")


@pytest.mark.parametrize(("content", "expected"), [
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
])  # fmt: skip
def test_damaged_models_are_refused(tmp_path, content, expected):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    message = f"tokenizer.model: expected a SentencePiece model, but it cannot be read .*{expected}"
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(str(path))


FAMILIES = {
    "gpt2": (R50K_PATTERN, "gpt2"),
    "p50k_base": (R50K_PATTERN, "gpt2"),
    "cl100k_base": (CL100K_PATTERN, None),
    "o200k_base": (PATTERNS["o200k"][0], "o200k"),
    "o200k_harmony": (PATTERNS["o200k"][0], "o200k"),
    "llama3": (PATTERNS["llama3"][0], "llama3"),
    "llama3.1": (PATTERNS["llama3"][0], "llama3"),
    "llama4": (PATTERNS["o200k"][0], "o200k"),
    "qwen": (PATTERNS["qwen2"][0], None),
}
"""Pattern of each family, and the name of the table by which gigatoken encodes it."""
MEGATRON = TokenizerOptions(tokenizer_type="TikTokenizer", vocab_size=580, tiktoken_num_special_tokens=20)


def loaded_ranks(tmp_path, family):
    path = tmp_path / f"{family}.tiktoken"
    path.write_bytes(tiktoken_file())
    return load_tokenizer(str(path))


def the_library(pattern, special, *, shift=0):
    shifted = {token: rank + shift for token, rank in ranks().items()}
    return tiktoken.Encoding(name="x", pat_str=pattern, mergeable_ranks=shifted, special_tokens=dict(special))


def assert_equal(tokenizer, library, texts, engine="auto"):
    chosen = choose_engine(tokenizer, engine, add_special_tokens=True)
    batch = make_encoder(tokenizer, chosen).encode(pa.array(texts, pa.large_string()))
    begin = 0
    for text, length in zip(texts, batch.lengths.tolist(), strict=True):
        assert batch.tokens[begin : begin + length].tolist() == library.encode(text, allowed_special="all"), repr(text)
        begin += length


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_ranks_are_those_of_tiktoken(tmp_path, family):
    tokenizer = loaded_ranks(tmp_path, family)
    pattern, table = FAMILIES[family]
    special = dict(read_definition(tokenizer.model).special_tokens)
    texts = fixed_texts([*special, *(token.decode(errors="ignore") for token in ranks())], seed=2)
    if family == "qwen":
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    assert_equal(tokenizer, the_library(pattern, special), texts)
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == ("tiktoken" if table is None else "gigatoken"), engine.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", ["gpt2", "o200k_base", "llama3", "cl100k_base"])
def test_code_points_of_ranks_agree(tmp_path, family):
    tokenizer = loaded_ranks(tmp_path, family)
    pattern, table = FAMILIES[family]
    library = the_library(pattern, read_definition(tokenizer.model).special_tokens)
    for texts in swept_texts(begin=1, every=50):
        assert_equal(tokenizer, library, texts)
    ends = [chr(point) for pair in read_ranges(DIFFERING[table or "gpt2"]) for point in pair]
    assert_equal(tokenizer, library, [text for end in ends for text in (end, f"a{end}'s 1{end}", f" {end}\n")])


@pytest.mark.parametrize("family", ["gpt2", "llama3", "o200k_base"])
def test_every_engine_gives_the_same(tmp_path, family):
    tokenizer = loaded_ranks(tmp_path, family)
    pattern, _ = FAMILIES[family]
    library = the_library(pattern, read_definition(tokenizer.model).special_tokens)
    for engine in ("auto", "gigatoken", "reference"):
        assert_equal(tokenizer, library, ["", "The mill's 1234 \u088f's", f"a{eod_of_family(family)}b"], engine)
    with pytest.raises(TokenizerError, match=r"expected a tokenizer\.json for --engine tokenizers; use .*: tiktoken"):
        choose_engine(tokenizer, "tokenizers", add_special_tokens=True)


def test_qwen_normalizes_as_its_own_code_does(tmp_path):
    tokenizer = loaded_ranks(tmp_path, "qwen")
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.version.endswith(f"with Unicode {unicodedata.unidata_version}")
    apart, composed = (
        make_encoder(tokenizer, engine).encode(pa.array([text], pa.large_string())).tokens.tolist()
        for text in ("e\u0301te\u0301", "été")
    )
    assert apart == composed


@pytest.mark.parametrize(("family", "ids", "size"), [
    ("gpt2", {"<|endoftext|>": 50256}, 50257),
    ("p50k_base", {"<|endoftext|>": 50256}, 50281),
    ("cl100k_base", {"<|endoftext|>": 100257, "<|endofprompt|>": 100276}, 100277),
    ("o200k_base", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}, 200019),
    ("o200k_harmony", {"<|endoftext|>": 199999, "<|call|>": 200012, "<|reserved_201087|>": 201087}, 201088),
    ("llama3", {"<|begin_of_text|>": 560, "<|eot_id|>": 569, "<|reserved_special_token_250|>": 815}, 816),
    ("llama3.1", {"<|end_of_text|>": 561, "<|python_tag|>": 570, "<|reserved_special_token_245|>": 815}, 816),
    ("llama4", {"<|end_of_text|>": 561, "<|patch|>": 652, "<|reserved_special_token_903|>": 2607}, 2608),
    ("qwen", {"<|endoftext|>": 560, "<|im_end|>": 562, "<|extra_204|>": 767}, 768),
])  # fmt: skip
def test_special_tokens_have_the_published_ids(tmp_path, family, ids, size):
    tokenizer = loaded_ranks(tmp_path, family)
    special = read_definition(tokenizer.model).special_tokens
    assert {token: special[token] for token in ids} == ids
    assert (tokenizer.vocabulary_size, tokenizer.eod_id) == (size, special[eod_of_family(family)])
    assert decode(tokenizer, [ranks()[b"a"], special[eod_of_family(family)]]) == f"a{eod_of_family(family)}"


def test_tekken_has_its_pattern_and_no_special_tokens_in_texts(tmp_path):
    path = tmp_path / "tekken.json"
    path.write_bytes(tekken_file(pattern=MEGATRON_PATTERNS["v2"]))
    tokenizer = load_tokenizer(str(path))
    assert (tokenizer.vocabulary_size, tokenizer.eod_id, tokenizer.special_tokens) == (580, 2, ())
    assert load_tokenizer(str(path), eod_token="[INST]").eod_id == 3
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).name == "gigatoken"
    library = the_library(MEGATRON_PATTERNS["v2"], {}, shift=20)
    assert_equal(tokenizer, library, fixed_texts(["[INST]", "</s>", "<|im_end|>"], seed=3))
    assert decode(tokenizer, [2, 20 + ord("a")]) == "</s>a"


@pytest.mark.parametrize(("name", "engine"), [("v1", "tiktoken"), ("v2", "gigatoken")])
def test_ranks_of_megatron_are_read_as_its_class_does(tmp_path, name, engine):
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps(rank_entries()))
    options = TokenizerOptions(
        tokenizer_type="TikTokenizer", vocab_size=520, tiktoken_num_special_tokens=20, tiktoken_pattern=name
    )
    tokenizer = load_tokenizer(str(path), options=options)
    names = ["<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>", *(f"<SPECIAL_{n}>" for n in range(7, 20))]
    special = {token: number for number, token in enumerate(names)}
    kept = {token: rank + 20 for token, rank in ranks().items() if rank < 500}
    library = tiktoken.Encoding(
        name="x", pat_str=MEGATRON_PATTERNS[name], mergeable_ranks=kept, special_tokens=special, explicit_n_vocab=520
    )
    assert (tokenizer.vocabulary_size, tokenizer.eod_id, tokenizer.special_tokens) == (520, 2, tuple(names))
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).name == engine
    assert_equal(tokenizer, library, fixed_texts(names, seed=4))


@pytest.mark.parametrize(("content", "options", "message"), [
    (rank_entries(), TokenizerOptions(), r"expected 130072 ranks for a vocabulary of 131072, got 560"),
    (rank_entries(), TokenizerOptions(vocab_size=10), "fewer than the 10 of the vocabulary"),
    (rank_entries(), TokenizerOptions(tokenizer_special_tokens=("<s>",)), "with <unk> <s> </s> <mask>"),
    ([{**rank_entries()[0], "rank": 1}], MEGATRON, "token 0: expected an object with rank 0"),
    ([{**rank_entries()[0], "token_bytes": "?"}], MEGATRON, "token 0: expected a token in base64"),
    ([rank_entries()[0]] * 2, MEGATRON, "token 1: expected an object with rank 1"),
    ({"vocab": [], "config": {}}, TokenizerOptions(), "a number default_vocab_size in its config, got None"),
    ({"vocab": [], "config": {"default_vocab_size": -1}}, TokenizerOptions(), "default_vocab_size in its config"),
])  # fmt: skip
def test_other_ranks_are_refused(tmp_path, content, options, message):
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=f"ranks.json: .*{message}"):
        load_tokenizer(str(path), options=options)


def test_text_that_tiktoken_cannot_split_is_named(tmp_path):
    tokenizer = loaded_ranks(tmp_path, "llama3")
    encoder = make_encoder(tokenizer, choose_engine(tokenizer, "reference", add_special_tokens=True))
    with pytest.raises(UnencodableError, match=r"expected a text that tiktoken can encode, .*of length 2,000,001"):
        encoder.encode(pa.array(["a" + " " * 2_000_000], pa.large_string()))


def test_special_token_that_begins_with_another_is_refused(tmp_path):
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps(rank_entries()))
    names = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>", "<s>x")
    options = TokenizerOptions(vocab_size=580, tiktoken_num_special_tokens=20, tokenizer_special_tokens=names)
    with pytest.raises(TokenizerError, match="of which none begins with another, got '<s>' and '<s>x'"):
        load_tokenizer(str(path), options=options)


GPT2 = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
MERGES = "#version: 0.2\n" + "".join(
    f"{merge if isinstance(merge, str) else ' '.join(merge)}\n" for merge in GPT2["merges"]
)


def options(folder, vocabulary, merges):
    (folder / "gpt2-vocab.json").write_text(vocabulary)
    (folder / "gpt2-merges.txt").write_text(merges)
    return TokenizerOptions(
        tokenizer_type="GPT2BPETokenizer",
        vocab_file=str(folder / "gpt2-vocab.json"),
        merge_file=str(folder / "gpt2-merges.txt"),
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_two_files_are_the_tokenizer_of_gpt2(tmp_path, newline):
    given = options(tmp_path, json.dumps(GPT2["vocab"]), MERGES.replace("\n", newline))
    tokenizer = load_tokenizer(given.vocab_file or "", options=given)
    assert (tokenizer.name, tokenizer.vocabulary_size, tokenizer.eod_id) == ("gpt2-vocab.json", 50257, 50256)
    assert choose_engine(tokenizer, "auto", add_special_tokens=True).name == "gigatoken"
    texts = fixed_texts(["<|endoftext|>"], seed=5)
    whole = shared_tokenizer(load_tokenizer(str(TOKENIZERS["gpt2"])))
    assert [e.ids for e in shared_tokenizer(tokenizer).encode_batch(texts)] == [
        e.ids for e in whole.encode_batch(texts)
    ]


@pytest.mark.parametrize(("vocabulary", "merges", "message"), [
    ("[]", "", "expected a JSON object with an id for each token"),
    ('{"a": "b"}', "", "expected a JSON object with an id for each token"),
    ('{"a": 0, "b": 1}', "a b\n", r"line 1 of the merges: expected two tokens .*, got 'a b'"),
    ('{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\nab\n", r"line 3 of the merges: .*, got 'ab'"),
    ("{", "", r"gpt2-vocab.json: expected JSON, but it cannot be read"),
])  # fmt: skip
def test_other_files_are_refused(tmp_path, vocabulary, merges, message):
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer("", options=options(tmp_path, vocabulary, merges))


TEXTS = ["a text", " with  spaces", "Grüße 123\n\n"]


def hinted_options(message):
    """Return the flags that a message says to use, with their values."""
    return {flag.replace("-", "_"): value for flag, value in re.findall(r"--([a-z-]+) ([^\s,;]+)", message)}


def refusal(path):
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(str(path))
    return str(caught.value)


def tokens(path, options=None):
    reference = reference_of(load_tokenizer(path, options=options))
    return [reference.encode([text], add_special_tokens=False)[0].tolist() for text in TEXTS]


@pytest.mark.parametrize("shape", ["llama2", "gemma", "t5"])
def test_folder_with_a_model_leads_to_its_own_tokens(tmp_path, shape):
    content = sentencepiece_model(shape)
    (tmp_path / "tokenizer.model").write_bytes(content)
    hint = hinted_options(refusal(tmp_path))
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert tokens(hint["tokenizer_model"]) == [processor.encode(text) for text in TEXTS]


def test_folder_with_ranks_leads_to_them_in_two_steps(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(tiktoken_file())
    file = hinted_options(refusal(tmp_path))["tokenizer_model"]
    with pytest.raises(TokenizerError, match=r"expected --tiktoken-encoding, .* choose one"):
        load_tokenizer(file)
    assert tokens(file, TokenizerOptions(tiktoken_encoding="llama3"))


def test_folder_with_gpt2_files_leads_to_the_same_tokenizer(tmp_path):
    model = json.loads((TOKENIZERS["gpt2"] / "tokenizer.json").read_bytes())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    lines = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{line}\n" for line in lines))
    hint = hinted_options(refusal(tmp_path))
    assert tokens(hint["vocab_file"], TokenizerOptions(**hint)) == tokens(str(TOKENIZERS["gpt2"]))


@pytest.mark.parametrize("config", [{"pad_token": "<pad>"}, {"add_bos_token": True, "bos_token": "<|bos|>"}])
def test_folder_that_contradicts_itself_leads_to_its_tokenizer_json(tmp_path, config):
    (tmp_path / "tokenizer.json").write_bytes(trained.byte_level())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    message = refusal(tmp_path)
    assert message.endswith(f"use --tokenizer-model {tmp_path}/tokenizer.json for the tokenizer.json alone")
    whole = tokenizers.Tokenizer.from_str(trained.byte_level().decode())
    expected = [whole.encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert tokens(hinted_options(message)["tokenizer_model"]) == expected


def test_dropout_can_be_set_to_null(tmp_path):
    document = json.loads(trained.byte_level())
    document["model"]["dropout"] = 0.1
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert re.search('set "dropout" to null in a copy of it', refusal(tmp_path))
    document["model"]["dropout"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert len(tokens(str(tmp_path))) == len(TEXTS)


def test_other_model_in_a_folder_is_told_and_can_be_used(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(trained.byte_level())
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model("llama2"))
    [note] = describe_folder(str(tmp_path), load_tokenizer(str(tmp_path)))
    assert 'tokenizer.json is used, and tokenizer.model beside it gives other tokens, as for "The quick' in note
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model("llama2"))
    file = note.rpartition("--tokenizer-model ")[2]
    assert tokens(file) == [processor.encode(text) for text in TEXTS]
    assert describe_folder(file, load_tokenizer(file)) == []


def test_same_model_in_a_folder_is_not_told(tmp_path):
    content = sentencepiece_model("llama2")
    (tmp_path / "tokenizer.model").write_bytes(content)
    from dsindex.text.fast_tokenizers import json_for_gigatoken

    (tmp_path / "tokenizer.json").write_bytes(json_for_gigatoken(load_tokenizer(f"{tmp_path}/tokenizer.model")))
    assert describe_folder(str(tmp_path), load_tokenizer(str(tmp_path))) == []
    (tmp_path / "tokenizer.model").write_bytes(b"not read")
    assert describe_folder(str(tmp_path), load_tokenizer(str(tmp_path))) == []


def metaspace(prepend):
    """A tokenizer.json in the shape of Llama's, with or without a space before every text."""
    pieces = ["<unk>", "<s>", "</s>", "\u2581", "a", "t", "e", "x"]
    made = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    return made.to_str().encode()


@pytest.mark.parametrize(("content", "config", "notes"), [
    (metaspace("never"), {"tokenizer_class": "LlamaTokenizerFast"}, ["adds a space"]),
    (metaspace("never"), {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, []),
    (metaspace("always"), {"tokenizer_class": "LlamaTokenizer"}, []),
    (metaspace("always"), {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, ["adds no space"]),
    (metaspace("always"), {"tokenizer_class": "GemmaTokenizer", "add_prefix_space": True}, ["adds no space"]),
    (metaspace("always"), {"tokenizer_class": "CodeLlamaTokenizer", "bos_token": "<s>"}, ["begins every text"]),
    (metaspace("never"), {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, []),
    (trained.byte_level(), {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, ["adds a space"]),
    (trained.byte_level(), {"tokenizer_class": "Qwen2Tokenizer"}, []),
    (trained.byte_level(), {"tokenizer_class": "LlamaTokenizer"}, []),
    (trained.byte_level(), {"tokenizer_class": ["GPT2Tokenizer"]}, []),
])  # fmt: skip
def test_class_that_changes_texts_is_told(tmp_path, content, config, notes):
    """The cases are those that were tried with transformers 5.23."""
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = describe_folder(str(tmp_path), load_tokenizer(str(tmp_path)))
    assert len(found) == len(notes)
    for note, wanted in zip(found, notes, strict=True):
        assert f"with which transformers {wanted}" in note


def test_eod_is_a_piece(tmp_path):
    path = tmp_path / "spm.model"
    path.write_bytes(sentencepiece_model("mistral"))
    assert load_tokenizer(str(path), eod_token="[INST]").eod_id == 3
    with pytest.raises(TokenizerError, match=r"EOD token '\[INST' in the vocabulary.*near it: '\[INST\]'"):
        load_tokenizer(str(path), eod_token="[INST")


def test_pattern_that_does_not_compile_is_refused(tmp_path):
    path = tmp_path / "tekken.json"
    path.write_bytes(tekken_file(pattern="(a"))
    with pytest.raises(TokenizerError, match=r"tekken.json: expected an encoding that tiktoken loads, got the error"):
        load_tokenizer(str(path))
