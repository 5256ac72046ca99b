"""Names of tokenizers: found in the cache with their commit, never fetched by these tests."""

import json
import subprocess
import sys

import huggingface_hub
import huggingface_hub.constants
import pytest

from dsindex.errors import TokenizerError
from dsindex.text.tokenizer import TokenizerOptions, load_tokenizer
from dsindex.text.tokenizer_file import find_tokenizer
from tests.support import text_tokenizers as trained
from tests.support.foreign_tokenizers import sentencepiece_model
from tests.support.hub_cache import COMMIT, put_in_cache

OTHER = "0" * 40
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
    assert tokenizer.json == trained.byte_level()
    for reference in ("main", COMMIT):
        assert load_tokenizer(f"{name}@{reference}") == tokenizer


def test_revision_is_honoured(home):
    put_in_cache(home, "org/name", {"tokenizer.json": trained.byte_level()})
    other = trained.with_template("<|bos|> $A")
    put_in_cache(home, "org/name", {"tokenizer.json": other}, commit=OTHER, reference="v2")
    assert load_tokenizer("org/name").revision == COMMIT
    assert (load_tokenizer("org/name@v2").revision, load_tokenizer("org/name@v2").json) == (OTHER, other)
    with pytest.raises(TokenizerError, match=r"org/name@v3: expected a file, a folder, or the name of a tokenizer in"):
        load_tokenizer("org/name@v3")


def test_path_comes_before_name(home, monkeypatch):
    put_in_cache(home, "gpt2", {"tokenizer.json": trained.byte_level()})
    (home / "work" / "gpt2").mkdir(parents=True)
    (home / "work" / "gpt2" / "tokenizer.json").write_bytes(trained.with_template("<|bos|> $A"))
    monkeypatch.chdir(home / "work")
    assert load_tokenizer("gpt2").revision is None


def test_model_in_the_cache_is_chosen_by_type(home):
    files = {"tokenizer.json": trained.byte_level(), "tokenizer.model": sentencepiece_model("llama2")}
    put_in_cache(home, "meta-llama/Llama-2-7b", files)
    tokenizer = load_tokenizer("meta-llama/Llama-2-7b", options=TokenizerOptions(tokenizer_type="Llama2Tokenizer"))
    assert (tokenizer.library, tokenizer.model) == ("sentencepiece", sentencepiece_model("llama2"))
    assert load_tokenizer("meta-llama/Llama-2-7b").library == "tokenizers"


def test_cache_without_a_tokenizer_is_not_enough(home):
    put_in_cache(home, "org/weights", {"config.json": b"{}"})
    with pytest.raises(
        TokenizerError, match=r"no such path, the cache has no such tokenizer, and the hub gave none \("
    ):
        load_tokenizer("org/weights")


@pytest.mark.parametrize(
    "path", ["no/such/folder", "/gpt2", "../gpt2", "./gpt2", "gpt2/", "tokenizer.json", "a b", "", "org/x.model", "-x"]
)
def test_what_cannot_be_a_name_is_a_path(home, path):
    assert not (home / path.lstrip("/.") / "x").exists()
    assert find_tokenizer(path).path == path
    with pytest.raises(TokenizerError, match=r"expected a tokenizer's file, or a folder .*, found nothing"):
        load_tokenizer(path)


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


def test_paths_need_no_hub_library(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(trained.byte_level())
    code = (
        "import sys; from dsindex.text.tokenizer import load_tokenizer; load_tokenizer(sys.argv[1]);"
        "print(sorted({'huggingface_hub', 'sentencepiece', 'tiktoken'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
