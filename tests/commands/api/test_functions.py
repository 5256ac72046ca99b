"""The functions of `import dsindex`, end to end: bytes and words of the command line, results, resuming, executors."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers

import dsindex
from dsindex import datasets
from dsindex.commands.raw_index import create_raw_index
from dsindex.errors import FormatError, InputError, PlanError, TokenizerError
from tests.commands.api.calls import EOD, TOKENIZER, assert_golden, build
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN


def test_build_says_what_it_made(capsys):
    built = build()
    assert_golden("out/docs_text_document")
    assert built.prefixes == ("out/docs_text_document",)
    assert "datasets=(MadeDataset(prefix='out/docs_text_document', num_documents=102, " in repr(built)
    dsindex.show(built)
    assert "102 lines = 102 kept + 0 quarantined + 0 blank" in capsys.readouterr().out
    assert not built.already_complete
    second_build = build()
    assert second_build.already_complete
    assert second_build.datasets == built.datasets
    with pytest.raises(PlanError, match=r"append-eod was given and is not given\nhint: .* with replace=True"):
        build(append_eod=False)
    assert build(append_eod=False, replace=True).already_complete is False


def test_stopped_build_goes_on_where_it_was(capsys):
    def stop(snapshot):
        if snapshot.stage == "tokenize" and snapshot.tasks_done == snapshot.tasks_total:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        build(progress=stop)
    assert not Path("out/docs_text_document.idx").exists()
    snapshots = []
    built = build(progress=snapshots.append)
    assert not built.already_complete
    assert_golden("out/docs_text_document")
    assert {snapshot.stage for snapshot in snapshots} >= {"tokenize", "merge"}
    assert capsys.readouterr() == ("", "")


def test_build_index_takes_results_and_open_and_verify_take_its_own():
    built = build()
    snapshots = []
    caches = dsindex.build_index(built, seq_length=16, epochs=2.5, data_cache_path="cache", progress=snapshots.append)
    assert (snapshots[-1].stage, snapshots[-1].done) == ("index", 3)
    train = dsindex.open(caches)
    assert isinstance(train, datasets.GPTDataset)
    assert len(train) == caches.results[0].num_samples
    assert np.array_equal(train[0]["tokens"], dsindex.open("cache")[0]["tokens"])
    assert len(dsindex.open(caches, split="valid")) == caches.results[1].num_samples
    assert dsindex.verify(built, cache=caches)
    with pytest.raises(InputError, match="cache: there are 0 index caches of the split dev"):
        dsindex.open(caches, split="dev")
    second_index = dsindex.build_index(built, seq_length=16, epochs=2.5, data_cache_path="cache")
    assert [result.reused for result in second_index.results] == [True, True, True]
    for misuse in (lambda: dsindex.verify(caches), lambda: dsindex.merge([caches], output_prefix="x")):
        with pytest.raises(dsindex.UsageError, match="these are index caches"):
            misuse()


def test_pack_and_convert_go_both_ways():
    packed = dsindex.pack(OWN.docs, tokenizer=TOKENIZER, output="out/x.pbin")
    assert packed.prefixes == ("out/x.pbin",)
    with pytest.raises(dsindex.UsageError, match=r"out/x\.pbin is not a \.bin and \.idx"):
        dsindex.merge(packed, output_prefix="x")
    converted = dsindex.convert(build(), "out/y.pbin", pbin_era="spec")
    later = dsindex.convert(converted, "out/z.pbin", pbin_era="2024-01-30")
    again = dsindex.convert(later, "out/again.pbin", pbin_era="spec")
    contents = [Path(result.prefixes[0]).read_bytes() for result in (converted, again, later)]
    assert contents[0] == contents[1] != contents[2]
    back = dsindex.convert(again, "out/back", token_type="uint16")
    assert back.prefixes == ("out/back",)
    assert_golden(back.prefixes[0])


def test_instruct_takes_its_configuration_as_a_mapping_or_a_file():
    config = {**SPEC, "max_length": 768, "too_long": "split"}
    options = {"tokenizer": TOKENIZER, "seq_length": 768, "split": [8, 1, 1], "executor": "local"}
    options |= {"on_bad_record": "quarantine", "output_prefix": "out/chat"}
    chats = dsindex.instruct(CONVERSATIONS, config=config, **options)
    job = {"seq-length": 768, "split": "8,1,1", "on-bad-record": "quarantine"}
    job |= {"input": [str(CONVERSATIONS)], "tokenizer-model": str(TOKENIZER), "output-prefix": "out/chat"}
    Path("config.yaml").write_text(json.dumps({**config, "job": job}))
    assert dsindex.instruct(config="config.yaml", executor="local").already_complete
    assert dsindex.verify(chats)
    valid = dsindex.open(chats, split="valid")
    assert isinstance(valid, datasets.PackedInstructionDataset)
    assert valid.prefix == "out/chat_valid"
    with pytest.raises(dsindex.UsageError, match="there is no split 'dev', only train, valid, test"):
        dsindex.open(chats, split="dev")
    with pytest.raises(dsindex.UsageError, match="instruction data is no dataset of texts"):
        dsindex.build_index(chats, seq_length=16, epochs=1)


def test_verify_is_true_if_nothing_is_wrong():
    built = build()
    assert dsindex.verify(built, against_source=True, tokenizer=TOKENIZER, engine="tokenizers")
    with open("out/docs_text_document.bin", "r+b") as file:
        file.write(b"\xff")
    damaged = dsindex.verify(["out/docs_text_document.idx", Path("out/nothing")])
    assert not damaged
    assert [len(report.findings) for report in damaged.reports] == [1, 1]
    assert any("docs_text_document.bin" in finding for finding in damaged.findings)
    assert damaged.reports[0].verdict == "damaged"
    with pytest.raises(TokenizerError, match="give its path with tokenizer"):
        dsindex.verify(built, against_source=True, tokenizer=OWN.bos_tokenizer)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_connected_ray_is_used_and_left_open():
    import ray

    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    built = build(tokenizer=tokenizer, eod_token=EOD)
    assert built.run.executor == "ray"
    assert_golden("out/docs_text_document")
    assert dsindex.build_index(built, seq_length=16, epochs=1, data_cache_path="cache").results
    assert dsindex.verify(built, against_source=True, tokenizer=tokenizer)
    assert ray.is_initialized()
    assert build("out/b", executor="local").run.executor == "local"


def test_tokenizer_object_is_what_it_serialises_to():
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    built = build(tokenizer=tokenizer, eod_token=EOD)
    assert_golden("out/docs_text_document")
    described = json.loads(Path("out/docs_text_document.manifest.json").read_bytes())["content"]["tokenizer"]
    assert described["name"] == "tokenizers.Tokenizer"
    assert len(described["sha256"]) == 64
    equal_tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    assert build(tokenizer=equal_tokenizer, eod_token=EOD).already_complete
    assert dsindex.verify(built, against_source=True, tokenizer=equal_tokenizer)
    other = tokenizers.Tokenizer.from_file(str(OWN.bos_tokenizer / "tokenizer.json"))
    with pytest.raises(PlanError, match="tokenizer was"):
        build(tokenizer=other, eod_token="<|eos|>")
    with pytest.raises(TokenizerError, match=r"choose one with eod_token$"):
        build("out/b", tokenizer=tokenizer)


OPENERS = {
    "prefix": (lambda: dsindex.open("out/docs_text_document"), datasets.IndexedDataset),
    "idx": (lambda: dsindex.open("out/docs_text_document.idx", check=False), datasets.IndexedDataset),
    "pbin": (lambda: dsindex.open("x.pbin"), datasets.PbinDocuments),
    "pbin-blocks": (lambda: dsindex.open("x.pbin", block_size=16), datasets.PackedMemMapDatasetContinuous),
    "raw-index": (lambda: dsindex.open("docs.idx"), datasets.RawLines),
    "jsonl": (lambda: dsindex.open("docs.jsonl"), datasets.RawLines),
    "cache-folder": (lambda: dsindex.open("cache"), datasets.GPTDataset),
    "description": (lambda: dsindex.open(next(Path("cache").glob("*valid-description.txt"))), datasets.GPTDataset),
}


@pytest.fixture
def every_kind():
    built = build()
    dsindex.convert(built, "x.pbin")
    dsindex.build_index(built, seq_length=16, epochs=1, data_cache_path="cache")
    Path("docs.jsonl").write_bytes(OWN.docs.read_bytes())
    create_raw_index("docs.jsonl", drop_faulty_entries=True)


@pytest.mark.usefixtures("every_kind")
def test_open_tells_the_kind_from_the_file():
    for name, (opener, kind) in OPENERS.items():
        assert type(opener()) is kind, name
        assert len(opener()) > 0, name  # type: ignore[arg-type]
    documents, indexed = dsindex.open("x.pbin"), dsindex.open("out/docs_text_document")
    assert isinstance(indexed, datasets.IndexedDataset)
    assert [tokens.tolist() for tokens in documents] == [indexed.document(j).tolist() for j in range(len(documents))]
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    by_object = dsindex.open("docs.jsonl", tokenizer=tokenizer)
    assert np.array_equal(by_object[3], dsindex.open("docs.idx", tokenizer=TOKENIZER)[3])


WRONG = [
    ("nothing", {}, InputError, "nothing: there is no dataset: no file or folder, and no nothing.idx"),
    ("out/docs", {}, InputError, "choose one of out/docs_text_document"),
    ("out", {}, InputError, "out: there is no dataset: only a folder"),
    ("cache", {"split": "dev"}, InputError, "0 index caches of the split dev\nhint: choose one of test, train, valid"),
    ("out/docs_text_document", {"block_size": 8}, InputError, "does not take the option block_size\nhint: omit it"),
    ("/dev/null", {}, InputError, "/dev/null: a device is not a dataset"),
    ("no-index.jsonl", {}, InputError, "text, and no raw index no-index.idx next to it"),
    ("cut.idx", {}, FormatError, "cut.idx: cut off: it has"),
    ("cut.pbin", {}, FormatError, "cut.pbin: not a .pbin of any version"),
    ("evil.idx", {}, FormatError, "evil.idx"),
    ("x-description.txt", {}, FormatError, "is not the description of a GPTDataset or BlendedDataset"),
]


@pytest.mark.usefixtures("every_kind")
def test_open_says_what_is_wrong_in_one_sentence():
    Path("no-index.jsonl").write_bytes(b'{"text": "x"}\n')
    Path("cut.idx").write_bytes(b"MMIDIDX\x00\x00\x01")
    Path("cut.pbin").write_bytes(Path("x.pbin").read_bytes()[:500])
    Path("evil.idx").write_bytes(b"\x80\x04cposix\nsystem\n(S'touch pwned'\ntR.")
    Path("evil.jsonl").write_bytes(b"{}\n")
    Path("x-description.txt").write_text("{}")
    for path, options, kind, message in WRONG:
        with pytest.raises(kind, match=message) as raised:
            dsindex.open(path, **options)
        assert "\n" not in raised.value.args[0]
    assert not Path("pwned").exists()
