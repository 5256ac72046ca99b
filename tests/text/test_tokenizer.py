"""Loading by path and by name: what a tokenizer says about itself, and one sentence for what is none."""

import json
import struct

import huggingface_hub.constants
import pytest
import tokenizers

from dsindex.errors import TokenizerError
from dsindex.text.encoders import encode_by_reference, make_encoder
from dsindex.text.engines import choose_engine
from dsindex.text.tiktoken_files import TokenizerOptions
from dsindex.text.tokenizer import load_tokenizer, require_eod, shared_tokenizer
from tests.support import text_tokenizers as trained
from tests.support import tokenizer_folders
from tests.support.golden import GOLDEN
from tests.support.hub_cache import COMMIT, put_in_cache


def folder(path, content, **contents):
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_bytes(content)
    for name, value in contents.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return str(path)


def test_eod_is_the_argument_or_the_folders(tmp_path):
    document = json.loads(trained.byte_level())
    same = {token["id"]: token for token in document["added_tokens"]}
    config, content = {"eos_token": "<|eot|>", "added_tokens_decoder": same}, json.dumps(document, indent=2).encode()
    path = folder(tmp_path / "t", content, tokenizer_config=config)
    eod_by_path = {path: (0, "<|eot|>"), f"{path}/tokenizer.json": (None, None)}
    loaded = {path: load_tokenizer(path) for path in eod_by_path}
    assert {path: (tokenizer.eod_id, tokenizer.eod_token) for path, tokenizer in loaded.items()} == eod_by_path
    assert {tokenizer.content for tokenizer in loaded.values()} == {content}
    assert load_tokenizer(path, eod_token="<|bos|>").eod_id == 1


def test_missing_eod_is_told_with_those_that_may_be_meant(tmp_path):
    path = folder(tmp_path / "t", trained.byte_level())
    with pytest.raises(TokenizerError, match=r"names no eos_token; .*'<\|eot\|>', '<\|bos\|>'\nhint: .* --eod-token"):
        require_eod(load_tokenizer(path))
    with pytest.raises(TokenizerError, match=r"EOD token '<eot>' is not in .*\nhint: .* --eod-token, such as '<\|eo"):
        load_tokenizer(path, eod_token="<eot>")
    with pytest.raises(TokenizerError, match=r"the EOD token '\\udcff' is not a text: .*\nhint: choose another"):
        load_tokenizer(path, eod_token="\udcff")


def part_of(name, **part):
    return trained.byte_level_document(**{name: part})


SENTENCEPIECE = b"\n\x0e\n\x05<unk>\x15" + struct.pack("<f", 0) + b"\x18\x02" + b"\n\x0c\n\x03<s>\x15\0\0\0\0\x18\x03"


@pytest.mark.parametrize(("name", "content", "message"), [
    ("tokenizer.model", SENTENCEPIECE, "not a SentencePiece model: "),
    ("gpt2.tiktoken", b"IQ== 0\nIQ= 1\n", "entry 1 is not a token in base64 and its rank: .*b'IQ='"),
    ("gpt2.tiktoken", b"IQ== 0\nIg== 1\n", "no token for the byte 0x00"),
    ("x.json", b'{"version": "1.0", ', "not valid JSON of a tokenizer: Input data was truncated"),
    ("x.json", b"[1]", "Expected `object`, got `array`"),
    ("x.json", b'{"text": "a document"}', "JSON without a model"),
    ("tekken.json", b'{"config": {"default_num_special_tokens": 4}, "vocab": []}', "a tekken.json of Mistral's"),
    ("x.json", trained.byte_level_document(model={"type": "Foo"}), "the tokenizers library cannot read it: "),
    # On these it panics.
    ("x.json", part_of("normalizer", type="Replace", pattern={"Regex": "(?:)"}, content="y"), "library cannot read it"),
    ("x.json", part_of("normalizer", type="Precompiled", precompiled_charsmap="/////w=="), "library cannot read it"),
    ("x.json", trained.byte_level_document(added_tokens=float("inf")), "not valid JSON of a tokenizer: "),
], ids=range(11))  # fmt: skip
def test_other_files_are_refused_by_name(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(str(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}: ")


def test_folder_without_a_tokenizer_names_what_is_there(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json in this folder, which has nothing"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "README.md").touch()
    with pytest.raises(TokenizerError, match=r"which has README.md\nhint: pass a file of it"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tiktoken.model").touch()
    with pytest.raises(TokenizerError, match=r"pass the tokenizer\.json of this model; tiktoken\.model needs"):
        load_tokenizer(str(tmp_path))


def test_input_given_as_tokenizer_is_not_read(tmp_path):
    with open(tmp_path / "huge", "wb") as stream:
        stream.write(b'{"text": "')
        stream.truncate(1 << 40)
    with pytest.raises(TokenizerError, match="pass the tokenizer, not the input"):
        load_tokenizer(str(tmp_path / "huge"))


def test_other_api_of_tokenizers_is_refused_in_one_line(tmp_path, monkeypatch):
    """As 1.0.0rc3 has it, whose tokens differ as well: for GPT-2's `\u0c5c's`, Llama 3's `'ſa`, and NFC."""
    monkeypatch.setattr(tokenizers, "Tokenizer", object)
    (tmp_path / "new.json").write_bytes(trained.byte_level_document(version="2.0"))
    (tmp_path / "merges.txt").touch()
    files = TokenizerOptions(vocab_file=str(tmp_path / "new.json"), merge_file=str(tmp_path / "merges.txt"))
    for options in (None, files):
        with pytest.raises(TokenizerError, match=r"^tokenizers [^\n]* has another API, [^\n]*\nhint: pip install"):
            load_tokenizer(str(tmp_path / "new.json"), options=options)


@pytest.mark.parametrize(("content", "name"), [
    (part_of("normalizer", type="Sequence", normalizers=[[[]]]), "tokenizers"),
    (part_of("post_processor", type={"id": 0}, sep=["[SEP]", 2], cls=["[CLS]", 1]), "gigatoken"),
], ids=["a list", "no type"])  # fmt: skip
def test_parts_that_tokenizers_reads_leniently_mean_the_same(tmp_path, content, name):
    """It reads a list for an object, and does without a type."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    tokenizer = load_tokenizer(str(path))
    engine = choose_engine(tokenizer, "auto", add_special_tokens=True)
    assert engine.name == name
    ids = shared_tokenizer(tokenizer).encode("a text").ids
    assert make_encoder(tokenizer, engine).encode(["a text"]).tokens.tolist() == ids


CONFIG = json.dumps({"eos_token": "<|eot|>"}).encode()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty cache, and a hub that cannot be reached; the library reads its variables when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


@pytest.mark.parametrize("name", ["gpt2", "org/model-1.5B"])
def test_name_is_found_in_the_cache(home, name):
    put_in_cache(home, name, {"tokenizer.json": trained.byte_level(), "tokenizer_config.json": CONFIG})
    tokenizer = load_tokenizer(name)
    assert (tokenizer.name, tokenizer.revision, tokenizer.eod_token) == (name, COMMIT, "<|eot|>")
    assert tokenizer.content == trained.byte_level()
    for reference in ("main", COMMIT):
        assert load_tokenizer(f"{name}@{reference}") == tokenizer


def test_only_files_of_tokenizers_are_fetched(home, monkeypatch):
    asked = []

    def snapshot_download(name, *, allow_patterns, local_files_only=False, **_):
        if local_files_only:
            raise FileNotFoundError(name)
        asked.append(allow_patterns)
        put_in_cache(home, name, {"tokenizer.json": trained.byte_level()})
        return str(home / "hub" / f"models--{name}" / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load_tokenizer("fetched").revision == COMMIT
    [patterns] = asked
    assert not [pattern for pattern in patterns if pattern.endswith((".py", ".bin", ".safetensors", "*"))]


@pytest.mark.parametrize(("config", "message"), [
    ({"split_special_tokens": True}, "split_special_tokens in tokenizer_config.json"),
    ({"add_bos_token": True, "bos_token": "<|bos|>"}, "add_bos_token and add_eos_token put"),
    ({"add_eos_token": True, "eos_token": "<|eot|>"}, "add_bos_token and add_eos_token put"),
    ({"additional_special_tokens": ["<new>"]}, "'<new>' is missing"),
    ({"additional_special_tokens": 5}, "additional_special_tokens is 5, not a list of tokens"),
    ({"extra_special_tokens": {"image_token": "<new>"}}, "'<new>' is missing"),
])  # fmt: skip
def test_settings_that_change_every_text_are_refused(config, message, tmp_path):
    path = folder(tmp_path / "t", trained.byte_level(), tokenizer_config=config)
    with pytest.raises(TokenizerError, match=f"disagree with .*{message}.*\nhint: use --tokenizer-model .*json for"):
        load_tokenizer(path)
    assert load_tokenizer(f"{path}/tokenizer.json").content == trained.byte_level()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "tokenizer_config.json"])
def test_git_lfs_pointers_are_named(name, tmp_path):
    folder(tmp_path, trained.byte_level())
    (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    place = tmp_path / name if name.endswith(".model") else tmp_path
    with pytest.raises(TokenizerError, match=f"{name}: a Git LFS pointer in place of .*\nhint: run `git lfs pull`"):
        load_tokenizer(str(place))


def test_drawn_folders_are_the_tokenizer_of_transformers(tmp_path):
    """The digests are of transformers 5.24: tests/peers/test_tokenizer_folders.py."""
    golden = json.loads((GOLDEN / "tokenizers" / "folders.json").read_text())
    descriptions = []
    for number in range(tokenizer_folders.FOLDERS):
        try:
            tokenizer = load_tokenizer(str(tokenizer_folders.write(tmp_path, number)))
        except TokenizerError:
            descriptions.append(None)
            continue
        rows = encode_by_reference(tokenizer, tokenizer_folders.TEXTS, add_special_tokens=True)
        facts = (tokenizer.vocabulary_size, tokenizer.eod_token, tokenizer.special_tokens)
        descriptions.append(tokenizer_folders.digest(rows, *facts))
    assert descriptions == golden
    assert golden.count(None) < len(golden) * 0.3
