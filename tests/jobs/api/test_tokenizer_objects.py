"""A tokenizer's object in place of its path."""

import json
import tempfile
from pathlib import Path

import pytest
import tokenizers

import dsindex
from dsindex.errors import PlanError, TokenizerError
from tests.jobs.api.calls import EOD, TOKENIZER, assert_golden, build
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN


def test_tokenizer_object_is_what_it_serialises_to(monkeypatch, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    loaded = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    built = build(tokenizer=loaded, eod_token=EOD)
    assert_golden("out/docs_text_document")
    described = json.loads(Path("out/docs_text_document.manifest.json").read_bytes())["content"]["tokenizer"]
    assert described["name"] == "tokenizers.Tokenizer"
    assert len(described["sha256"]) == 64
    same = tokenizers.Tokenizer.from_str(loaded.to_str())
    assert build(tokenizer=same, eod_token=EOD).already_complete
    assert dsindex.verify(built, against_source=True, tokenizer=same)
    other = tokenizers.Tokenizer.from_file(str(OWN.bos_tokenizer / "tokenizer.json"))
    with pytest.raises(PlanError, match="tokenizer was"):
        build(tokenizer=other, eod_token="<|eos|>")
    with pytest.raises(TokenizerError, match=r"choose one with eod_token$"):
        build("out/b", tokenizer=loaded)
    with pytest.raises(TokenizerError, match="give its path with tokenizer"):
        dsindex.verify(built, against_source=True)
    packed = dsindex.pack(OWN.docs, tokenizer=loaded, eod_token=EOD, output="out/x.pbin")
    by_path = dsindex.pack(OWN.docs, tokenizer=TOKENIZER, output="out/y.pbin")
    assert packed.files["pbin"].digest == by_path.files["pbin"].digest
    assert list(temporary.iterdir()) == []
    assert not [path for path in Path("out").iterdir() if "okenizer" in path.name]


def test_tokenizer_of_transformers_is_refused_with_what_to_give():
    class Fast:
        backend_tokenizer = None

    with pytest.raises(dsindex.OptionsError, match=r"got .*\.Fast \(pass its backend_tokenizer\)"):
        build(tokenizer=Fast())


def test_instruct_takes_a_tokenizer_object():
    loaded = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    options = {"config": SPEC, "executor": "local", "on_bad_record": "quarantine"}
    by_object = dsindex.instruct(CONVERSATIONS, tokenizer=loaded, output_prefix="out/a", **options)
    by_path = dsindex.instruct(CONVERSATIONS, tokenizer=TOKENIZER, output_prefix="out/b", **options)
    assert by_object.splits[0].files == by_path.splits[0].files
