"""The functions of `import dsindex`, end to end: the bytes and the words of the command line, results, resuming."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

import dsindex
from dsindex.cli.main import main
from dsindex.datasets import BlendedDataset, GPTDataset, PackedInstructionDataset
from dsindex.errors import OutputError, PlanError, TokenizerError
from tests.jobs.api.calls import TOKENIZER, WORDS, assert_golden, build, command, published, without_times
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.golden import OWN


def test_build_makes_what_the_command_makes(capsys):
    built = build()
    said = command("build", "--input", OWN.docs, *WORDS, "--append-eod", "--output-prefix", "out/docs")
    capsys.readouterr()
    assert_golden("out/docs_text_document")
    assert published("out") == published("by-command/out")
    assert without_times(str(built)) == without_times(said)
    assert built.prefixes == ("out/docs_text_document",)
    assert repr(built) == "BuildResult(out/docs_text_document: 102 documents, 20,382 tokens)"
    assert not built.already_complete


def test_build_again_is_already_complete_and_another_plan_is_refused():
    first, second = build(), build()
    assert second.already_complete
    assert second.datasets == first.datasets
    assert str(second).startswith("already complete")
    with pytest.raises(PlanError, match=r"append-eod was on \(token 0\) and is off; .* replace it with fresh=True"):
        build(append_eod=False)
    assert build(append_eod=False, fresh=True).already_complete is False


def test_stopped_build_goes_on_where_it_was(capsys):
    class StopError(Exception):
        pass

    def stop(snapshot):
        if snapshot.stage == "tokenize" and snapshot.tasks_done == snapshot.tasks_total:
            raise StopError

    with pytest.raises(StopError):
        build(progress=stop)
    assert not Path("out/docs_text_document.idx").exists()
    seen = []
    built = build(progress=seen.append)
    assert not built.already_complete
    assert_golden("out/docs_text_document")
    assert {snapshot.stage for snapshot in seen} >= {"tokenize", "merge"}
    assert capsys.readouterr() == ("", "")


def test_progress_is_quiet_or_what_the_command_shows(capsys):
    build("out/a")
    assert capsys.readouterr() == ("", "")
    build("out/b", progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.partition(":")[0] for line in printed.err.splitlines() if "done in" in line] == ["tokenize", "merge"]


def test_build_takes_paths_patterns_and_numbers_of_numpy():
    Path("in").mkdir()
    lines = OWN.docs.read_bytes().splitlines(keepends=True)
    Path("in/a.jsonl").write_bytes(b"".join(lines[:40]))
    Path("in/b.jsonl").write_bytes(b"".join(lines[40:]))
    options = {"tokenizer": TOKENIZER, "append_eod": True, "workers": np.int64(2)}
    dsindex.build("in/*.jsonl", output_prefix="out/pattern", **options)
    paths = (Path("in") / name for name in ("a.jsonl", "b.jsonl"))
    dsindex.build(paths, output_prefix=Path("out/paths"), **options)
    for name in ("pattern", "paths"):
        assert_golden(f"out/{name}_text_document")


def test_build_of_several_keys_with_indices():
    index = dsindex.IndexOptions(seq_length=16, epochs=1.5, data_cache_path="cache")
    built = build(json_keys=["text", "title"], index=index)
    assert built.prefixes == ("out/docs_text_document", "out/docs_title_document")
    assert [len(indices.descriptions) for indices in built.indices] == [3, 3]
    words = ["--json-keys", "text", "title", "--seq-length", 16, "--epochs", 1.5, "--data-cache-path", "cache"]
    command("build", "--input", OWN.docs, *WORDS, "--append-eod", "--output-prefix", "out/docs", *words)
    ours, theirs = published("cache"), published("by-command/cache")
    assert {name: data for name, data in ours.items() if name.endswith(".npy")} == {
        name: data for name, data in theirs.items() if name.endswith(".npy")
    }
    verified = dsindex.verify(built, cache="cache")
    assert verified.prefixes == built.prefixes
    with pytest.raises(dsindex.OptionsError, match=r"path: expected one dataset, got 2 .*; choose one"):
        dsindex.open(built)
    with pytest.raises(dsindex.OptionsError, match="prefix: expected one dataset, got 2"):
        dsindex.repair(built, output="new")
    with pytest.raises(dsindex.OptionsError, match="data_path: expected a weight for each dataset, got one for 2"):
        dsindex.build_index([0.5, built], seq_length=16, epochs=1)


def test_merge_makes_what_the_command_makes():
    merged = dsindex.merge(OWN.merge_inputs, output_prefix="out/merged")
    said = command("merge", "--input", *OWN.merge_inputs, "--output-prefix", "out/merged")
    assert str(merged) + "\n" == said
    for suffix in ("bin", "idx"):
        assert Path(f"out/merged.{suffix}").read_bytes() == Path(f"{OWN.merged}.{suffix}").read_bytes()
    assert dsindex.merge(OWN.merge_inputs, output_prefix="out/merged").already_complete


def test_merge_takes_results():
    built = build()
    merged = dsindex.merge([built, "out/docs_text_document.bin", built], output_prefix="out/three")
    assert merged.num_documents == 3 * built.datasets[0].num_documents
    assert dsindex.verify(merged)


def test_build_index_makes_what_the_command_makes(tmp_path):
    case = OWN.index_case("blend")
    like = next(case.cache / name for name in sorted(case.files) if name.endswith("description.txt"))
    assert case.weights is not None
    blend = [word for pair in zip(case.weights, case.prefixes, strict=True) for word in pair]
    with contextlib.chdir(case.folder):
        caches = dsindex.build_index(
            blend, seq_length=case.sequence_length, num_samples=case.num_samples, split=case.split, seed=case.seed,
            like=like, data_cache_path=tmp_path / "cache",
        )  # fmt: skip
        dataset = dsindex.open(caches)
    for name in case.files:
        assert (tmp_path / "cache" / name).read_bytes() == (case.cache / name).read_bytes(), name
    assert isinstance(dataset, BlendedDataset)
    assert dataset[0]["tokens"][:8].tolist() == list(case.first_tokens[0])


def test_build_index_takes_results_and_open_and_verify_take_its_own():
    built = build()
    seen = []
    caches = dsindex.build_index(built, seq_length=16, epochs=2.5, data_cache_path="cache", progress=seen.append)
    assert (seen[-1].stage, seen[-1].done) == ("index", 1)
    train = dsindex.open(caches)
    assert isinstance(train, GPTDataset)
    assert len(train) == caches.results[0].num_samples
    assert np.array_equal(train[0]["tokens"], dsindex.open("cache")[0]["tokens"])
    assert len(dsindex.open(caches, split="valid")) == caches.results[1].num_samples
    assert dsindex.verify(built, cache=caches)
    again = dsindex.build_index(built, seq_length=16, epochs=2.5, data_cache_path="cache")
    assert [result.reused for result in again.results] == [True, True, True]
    for misuse in (lambda: dsindex.verify(caches), lambda: dsindex.merge([caches], output_prefix="x")):
        with pytest.raises(dsindex.OptionsError, match="expected a dataset, got index caches"):
            misuse()


def test_cache_that_knows_no_extra_token_opens_as_it_was_built():
    dsindex.build_index(build(), seq_length=16, epochs=1, data_cache_path="cache", no_extra_token=True)
    train = dsindex.open("cache")
    assert isinstance(train, GPTDataset)
    assert train.tokens(0).shape == (16,)


def test_pack_makes_what_the_command_makes():
    packed = dsindex.pack(OWN.docs, tokenizer=TOKENIZER, output="out/x.pbin", shard_size="8KiB", workers=2)
    said = command("pack", "--input", OWN.docs, *WORDS, "--output", "out/x.pbin")
    assert published("out") == published("by-command/out")
    assert without_times(str(packed)) == without_times(said)
    assert packed.prefixes == ("out/x.pbin",)
    assert dsindex.verify(packed)
    with pytest.raises(dsindex.OptionsError, match=r"expected datasets of \.bin and \.idx, got out/x\.pbin"):
        dsindex.merge(packed, output_prefix="x")


def test_instruct_makes_what_the_command_makes():
    config = {**SPEC, "max_length": 768, "too_long": "split"}
    options = {"tokenizer": TOKENIZER, "seq_length": 768, "split": [8, 1, 1], "executor": "local"}
    options["on_bad_record"] = "quarantine"
    made = dsindex.instruct(CONVERSATIONS, config=config, output_prefix="out/chat", **options)
    job = {"seq-length": 768, "split": "8,1,1", "on-bad-record": "quarantine"}
    job |= {"input": [str(CONVERSATIONS)], "tokenizer-model": str(TOKENIZER), "output-prefix": "out/chat"}
    Path("config.yaml").write_text(json.dumps({**config, "job": job}))
    said = command("instruct", "../config.yaml", "--executor", "local")
    assert published("out") == published("by-command/out")
    assert without_times(str(made)) == without_times(said)
    from_file = dsindex.instruct(config="config.yaml", executor="local")
    assert from_file.already_complete
    assert dsindex.verify(made)
    assert len(made.prefixes) == 9
    valid = dsindex.open(made, split="valid")
    assert isinstance(valid, PackedInstructionDataset)
    assert valid.prefix == "out/chat_valid"
    with pytest.raises(dsindex.OptionsError, match="split: expected one of train, valid, test, got 'dev'"):
        dsindex.open(made, split="dev")
    with pytest.raises(dsindex.OptionsError, match="expected datasets of texts, got instruction data"):
        dsindex.build_index(made, seq_length=16, epochs=1)
    with pytest.raises(dsindex.OptionsError, match="expected max_length to be at most seq_length 512, got 768"):
        dsindex.instruct(config="config.yaml", output_prefix="out/b", seq_length=512)


def test_convert_makes_what_the_command_makes():
    built = build()
    converted = dsindex.convert(built, "out/x.pbin", pbin_era="2024-04")
    said = command("convert", "../out/docs_text_document", "x.pbin", "--pbin-era", "2024-04")
    assert Path("out/x.pbin").read_bytes() == Path("by-command/x.pbin").read_bytes()
    assert str(converted).removeprefix("out/") + "\n" == said
    back = dsindex.convert(converted, "out/back")
    assert back.prefixes == ("out/back",)
    assert_golden(back.prefixes[0])
    with pytest.raises(OutputError, match=r"x\.pbin"):
        dsindex.convert(built, "out/x.pbin")


def test_verify_says_what_the_command_says():
    built = build()
    options = {"against_source": True, "tokenizer": TOKENIZER, "engine": "tokenizers"}
    whole = dsindex.verify(built, **options)
    words = ["--against-source", "--tokenizer-model", TOKENIZER, "--engine", "tokenizers"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["verify", *built.prefixes, *map(str, words)]) == 0
    assert str(whole) + "\n" == printed.getvalue()
    assert whole
    assert whole.is_whole
    assert repr(whole) == "VerifyResult(out/docs_text_document: whole)"
    with open("out/docs_text_document.bin", "r+b") as file:
        file.write(b"\xff")
    damaged = dsindex.verify(["out/docs_text_document.idx", Path("out/nothing")])
    assert not damaged
    assert [report.is_whole for report in damaged.reports] == [False, False]
    assert any("docs_text_document.bin" in finding for finding in damaged.findings)
    assert "DAMAGED" in str(damaged)
    with pytest.raises(TokenizerError, match=r"give that one with tokenizer$"):
        dsindex.verify(built, against_source=True, tokenizer=OWN.bos_tokenizer)


def test_repair_makes_what_the_command_makes():
    built = build()
    assert dsindex.repair(built, output="new").prefixes == built.prefixes
    idx = Path("out/docs_text_document.idx")
    idx.write_bytes(idx.read_bytes()[:40])
    repaired = dsindex.repair(built, output="new", tokenizer=TOKENIZER)
    command("repair", "../out/docs_text_document", "--output", "new", "--tokenizer-model", TOKENIZER)
    assert isinstance(repaired, dsindex.RepairResult)
    assert_golden("new")
    assert Path("new.idx").read_bytes() == Path("by-command/new.idx").read_bytes()
    assert str(repaired).startswith("out/docs_text_document: restored from")
    assert dsindex.verify(repaired)
    packed = dsindex.convert(repaired, "x.pbin")
    mended = dsindex.repair(packed, output="y.pbin")
    assert isinstance(mended, dsindex.PackedRepairResult)
    assert (mended.num_joints, mended.prefixes) == (0, ("x.pbin",))
    assert str(mended) == "x.pbin: intact"


def test_estimate_takes_the_options_of_a_build():
    options = {"tokenizer": TOKENIZER, "append_eod": True, "output_prefix": "out/docs"}
    estimated = dsindex.estimate(OWN.docs, **options, index=dsindex.IndexOptions(seq_length=16, epochs=2))
    assert estimated.documents == 102
    assert str(estimated).startswith("inputs       1, 64.5 kB\n")
    assert repr(estimated).startswith("EstimateResult(about 102 documents")
    assert not Path("out").exists()
