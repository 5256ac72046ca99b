"""Files of ranks: the same tokens as tiktoken, with every engine and for every kind of file."""

import json
import unicodedata

import pyarrow as pa
import pytest
import tiktoken

from dsindex.errors import TokenizerError, UnencodableError
from dsindex.text.agreement import DIFFERING, PATTERNS, read_ranges
from dsindex.text.conversion import CL100K_PATTERN, MEGATRON_PATTERNS, R50K_PATTERN, eod_of_family, read_definition
from dsindex.text.encoders import choose_engine, make_encoder
from dsindex.text.tokenizer import TokenizerOptions, decode, load_tokenizer
from tests.dsindex.text.conversion_texts import fixed_texts, swept_texts
from tests.support.foreign_tokenizers import rank_entries, ranks, tekken_file, tiktoken_file

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


def loaded(tmp_path, family):
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
def test_tokens_are_those_of_the_library(tmp_path, family):
    tokenizer = loaded(tmp_path, family)
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
def test_code_points_agree(tmp_path, family):
    tokenizer = loaded(tmp_path, family)
    pattern, table = FAMILIES[family]
    library = the_library(pattern, read_definition(tokenizer.model).special_tokens)
    for texts in swept_texts(begin=1, every=50):
        assert_equal(tokenizer, library, texts)
    ends = [chr(point) for pair in read_ranges(DIFFERING[table or "gpt2"]) for point in pair]
    assert_equal(tokenizer, library, [text for end in ends for text in (end, f"a{end}'s 1{end}", f" {end}\n")])


@pytest.mark.parametrize("family", ["gpt2", "llama3", "o200k_base"])
def test_every_engine_gives_the_same(tmp_path, family):
    tokenizer = loaded(tmp_path, family)
    pattern, _ = FAMILIES[family]
    library = the_library(pattern, read_definition(tokenizer.model).special_tokens)
    for engine in ("auto", "gigatoken", "reference"):
        assert_equal(tokenizer, library, ["", "The mill's 1234 \u088f's", f"a{eod_of_family(family)}b"], engine)
    with pytest.raises(TokenizerError, match=r"expected a tokenizer\.json for --engine tokenizers; use .*: tiktoken"):
        choose_engine(tokenizer, "tokenizers", add_special_tokens=True)


def test_qwen_normalizes_as_its_own_code_does(tmp_path):
    tokenizer = loaded(tmp_path, "qwen")
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.version.endswith(f"with Unicode {unicodedata.unidata_version}")
    apart, composed = (
        make_encoder(tokenizer, engine).encode(pa.array([text], pa.large_string())).tokens.tolist()
        for text in ("e\u0301te\u0301", "été")
    )
    assert apart == composed


@pytest.mark.parametrize(
    ("family", "ids", "size"),
    [
        ("gpt2", {"<|endoftext|>": 50256}, 50257),
        ("p50k_base", {"<|endoftext|>": 50256}, 50281),
        ("cl100k_base", {"<|endoftext|>": 100257, "<|endofprompt|>": 100276}, 100277),
        ("o200k_base", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}, 200019),
        ("o200k_harmony", {"<|endoftext|>": 199999, "<|call|>": 200012, "<|reserved_201087|>": 201087}, 201088),
        ("llama3", {"<|begin_of_text|>": 560, "<|eot_id|>": 569, "<|reserved_special_token_250|>": 815}, 816),
        ("llama3.1", {"<|end_of_text|>": 561, "<|python_tag|>": 570, "<|reserved_special_token_245|>": 815}, 816),
        ("llama4", {"<|end_of_text|>": 561, "<|patch|>": 652, "<|reserved_special_token_903|>": 2607}, 2608),
        ("qwen", {"<|endoftext|>": 560, "<|im_end|>": 562, "<|extra_204|>": 767}, 768),
    ],
)
def test_special_tokens_have_the_published_ids(tmp_path, family, ids, size):
    tokenizer = loaded(tmp_path, family)
    special = read_definition(tokenizer.model).special_tokens
    assert {token: special[token] for token in ids} == ids
    assert (tokenizer.vocabulary_size, tokenizer.eod_id) == (size, special[eod_of_family(family)])
    assert decode(tokenizer, [ranks()[b"a"], special[eod_of_family(family)]]) == f"a{eod_of_family(family)}"


def test_model_of_llama_3_needs_its_family(tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tiktoken_file())
    with pytest.raises(TokenizerError, match=r"expected --tiktoken-encoding, .*, got none; choose one \(known: gpt2"):
        load_tokenizer(str(path))
    with pytest.raises(TokenizerError, match="got 'llama5'"):
        load_tokenizer(str(path), options=TokenizerOptions(tiktoken_encoding="llama5"))
    tokenizer = load_tokenizer(str(path), options=TokenizerOptions(tiktoken_encoding="llama3"))
    assert tokenizer.eod_token == "<|end_of_text|>"
    assert tokenizer.sha256 != load_tokenizer(str(path), options=TokenizerOptions(tiktoken_encoding="gpt2")).sha256


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


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (rank_entries(), TokenizerOptions(), r"expected 130072 ranks for a vocabulary of 131072, got 560"),
        (rank_entries(), TokenizerOptions(vocab_size=10), "fewer than the 10 of the vocabulary"),
        (rank_entries(), TokenizerOptions(tokenizer_special_tokens=("<s>",)), "with <unk> <s> </s> <mask>"),
        ([{**rank_entries()[0], "rank": 1}], MEGATRON, "token 0: expected an object with rank 0"),
        ([{**rank_entries()[0], "token_bytes": "?"}], MEGATRON, "token 0: expected a token in base64"),
        ([rank_entries()[0]] * 2, MEGATRON, "token 1: expected an object with rank 1"),
        ({"vocab": [], "config": {}}, TokenizerOptions(), "a number default_vocab_size in its config, got None"),
        ({"vocab": [], "config": {"default_vocab_size": -1}}, TokenizerOptions(), "default_vocab_size in its config"),
    ],
)
def test_other_ranks_are_refused(tmp_path, content, options, message):
    path = tmp_path / "ranks.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=f"ranks.json: .*{message}"):
        load_tokenizer(str(path), options=options)


def test_pattern_that_does_not_compile_is_refused(tmp_path):
    path = tmp_path / "tekken.json"
    path.write_bytes(tekken_file(pattern="(a"))
    with pytest.raises(TokenizerError, match=r"tekken.json: expected an encoding that tiktoken loads, got the error"):
        load_tokenizer(str(path))


def test_text_that_tiktoken_cannot_split_is_named(tmp_path):
    tokenizer = loaded(tmp_path, "llama3")
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
