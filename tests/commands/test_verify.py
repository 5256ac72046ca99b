"""Verification of datasets and caches: by manifests, by their sources down to the line, and by another dataset."""

import json
import re
import shutil
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dsindex.chat.config import check_config
from dsindex.commands.verify_caches import is_cache_of, list_caches, verify_cache
from dsindex.datasets.detect import DetectedDataset
from dsindex.datasets.documents import open_documents
from dsindex.errors import InputError, TokenizerError
from dsindex.formats.manifest import manifest_path
from dsindex.options.build import BuildConfig
from dsindex.options.instruct import InstructConfig
from dsindex.store.read import digest_file
from tests.commands.pack.verifying import all_findings, verify
from tests.support.conversations import CONVERSATIONS, SPEC
from tests.support.datasets import write_dataset
from tests.support.golden import GOLDEN, OWN, golden_cases
from tests.support.jobs import config_of, run_config
from tests.support.pbin_files import write_pbin
from tests.support.published import edit_manifest, move_tokenizer_away

TRUSTED = f"gigatoken {version('gigatoken')}, and with tokenizers {version('tokenizers')} where the two can differ"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    run_config(config_of(BuildConfig, OWN.docs, append_eod=True, output_prefix=str(folder / "docs")))
    return folder


@pytest.fixture
def built(original, tmp_path):
    """The prefix of a copy of a build of the golden text, whose files a test may change."""
    shutil.copytree(original, tmp_path / "copy")
    return str(tmp_path / "copy" / "docs_text_document")


def change_token(prefix, token, value):
    tokens = np.memmap(f"{prefix}.bin", "<u2", mode="r+")
    tokens[token] = value
    tokens.flush()


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_build_is_intact_and_equals_its_source(engine, built):
    report = verify(built, against_source=True, engine=engine)
    assert (report.findings, report.verdict) == ((), "intact")
    trusted = TRUSTED if engine == "gigatoken" else f"tokenizers {version('tokenizers')}, the reference"
    assert report.checks[-1].name == f"against the source: 1 of 1 shards tokenized again with {trusted}"


def test_first_document_that_differs_is_named_with_its_line(built, monkeypatch):
    monkeypatch.setattr("dsindex.commands.verify.SHARD_BYTES", 5000)
    change_token(built, 10000, 7)
    edit_manifest(built, lambda m: m["content"]["digests"]["bin"].update(xxh3_128=digest_file(f"{built}.bin")))
    [finding] = verify(built, against_source=True).findings
    document = open_documents(DetectedDataset(kind="MMIDIDX", path=built)).document_at(10000)
    assert f"document {document} differs from its source, {OWN.docs}, line {document + 1}: its token" in finding
    assert "is 7 and " in finding


@pytest.mark.parametrize(("share", "num"), [(0.01, 1), (0.5, 7)])
def test_a_sample_of_the_shards_is_compared(share, num, built, monkeypatch):
    monkeypatch.setattr("dsindex.commands.verify.SHARD_BYTES", 5000)
    name = verify(built, against_source=True, sample=share).checks[-1].name
    assert name.startswith(f"against the source: {num} of 13 shards")


EDITS = {
    "size": (lambda m: m["content"]["digests"]["idx"].update(size_bytes=1), "2058 bytes, and 1 bytes are recorded"),
    "type": (lambda m: m["content"].update(documents="x"), "at `$.content.documents`"),
    "digest": (lambda m: m["content"]["digests"]["bin"].update(xxh3_128="0" * 32), "the digest is "),
    "documents": (lambda m: m["content"].update(documents=103), "documents: 103 recorded, 102 in the dataset"),
    "sequences": (lambda m: m["content"].update(sequences=99), "sequences: 99 recorded, 100 in the dataset"),
    "tokens": (lambda m: m["content"].update(tokens=1), "tokens: 1 recorded, "),
    "token type": (lambda m: m["content"].update(token_dtype="int32"), "token type: int32 recorded, uint16 in the"),
    "escape": (lambda m: m["content"]["digests"].update({"/../../x": None}), "matching regex '^[a-z0-9]"),
}


@pytest.mark.parametrize(("edit", "message"), EDITS.values(), ids=EDITS)
def test_manifest_that_lies_is_found(edit, message, built):
    edit_manifest(built, edit)
    assert message in all_findings(verify(built))


def test_id_outside_the_given_vocabulary_is_named_with_its_document(tmp_path, monkeypatch):
    """Of a dataset of another program; the first of each piece."""
    monkeypatch.setattr("dsindex.commands.verify.PIECE_TOKENS", 2)
    prefix = write_dataset(tmp_path / "d", [[[5, 6]], [[7], [8, 60000, 9]], [[60001]]])
    report = verify(prefix)
    finding, _ = report.findings
    assert report.verdict == "damaged"
    assert f"{prefix}.bin: id 60000 in document 1 is not below 800" in finding


def test_manifest_of_the_other_kind_is_not_gone_by(built):
    """An MMIDIDX pair and a .pbin may share a prefix."""
    report = verify(write_pbin(Path(f"{built}.pbin"), [[1], [2]]))
    assert (report.findings, report.verdict) == ((), "sound")
    assert report.notes[0].startswith(f"{built}.manifest.json belongs to a dataset of another format")


def test_damaged_files_are_found(built):
    path = Path(f"{built}.provenance.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    assert "provenance.parquet: it has " in all_findings(verify(built))
    path.unlink()
    assert "there is no regular file, and" in all_findings(verify(built))
    Path(f"{built}.idx").unlink()
    report = verify(built)
    assert "digest of the .bin" in [check.name for check in report.checks if not check.findings]  # still checked
    assert f"{built}.idx: is missing next to its .bin" in report.findings[0]


def test_provenance_has_a_row_for_every_document(built, make_config, tmp_path):
    """Also if its digest is the one in the manifest: a build may have lost the rows of a shard."""
    (tmp_path / "less.jsonl").write_bytes(OWN.docs.read_bytes().partition(b"\n")[2])
    [less] = run_config(make_config(input=(str(tmp_path / "less.jsonl"),))).prefixes
    name = "provenance.parquet"
    shutil.copy(f"{less}.{name}", f"{built}.{name}")
    entry = json.loads(Path(manifest_path(less)).read_bytes())["content"]["digests"][name]
    edit_manifest(built, lambda manifest: manifest["content"]["digests"].update({name: entry}))
    report = verify(built)
    assert report.verdict == "damaged"
    assert f"{built}.{name}: it has 101 rows for 102 documents" in all_findings(report)


def test_source_that_changed_is_named(make_config, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(OWN.docs.read_bytes())
    [prefix] = run_config(make_config(input=(str(source),))).prefixes
    source.write_bytes(OWN.docs.read_bytes() + b"\n")
    with pytest.raises(InputError, match=f"{source}: it is not the input of 64460 bytes"):
        verify(prefix, against_source=True)
    source.unlink()
    with pytest.raises(InputError, match=f"{source}: cannot be read"):
        verify(prefix, against_source=True)


def test_source_needs_the_same_tokenizer_provenance_and_a_manifest(built):
    move_tokenizer_away(built)
    with pytest.raises(TokenizerError, match="give its path with --tokenizer-model"):
        verify(built, against_source=True, tokenizer_model=None)
    with pytest.raises(TokenizerError, match="the tokenizer of the dataset, 'plain' with sha256 112cf"):
        verify(built, against_source=True, tokenizer_model=str(OWN.bos_tokenizer))
    Path(f"{built}.provenance.parquet").unlink()
    with pytest.raises(InputError, match="build the dataset again and compare: dsindex verify A --same-as B"):
        verify(built, against_source=True)
    Path(manifest_path(built)).write_text("{")
    assert "not a manifest" in verify(built, against_source=True).findings[0]
    Path(manifest_path(built)).unlink()
    with pytest.raises(InputError, match="no manifest of a build"):
        verify(built, against_source=True)


def test_instruction_data_refuses_its_source_and_says_what_is_possible(tmp_path):
    prefix = str(tmp_path / "chat")
    config = config_of(InstructConfig, CONVERSATIONS, output_prefix=prefix, seq_length=4096)
    run_config(config, check_config(SPEC, source="test"))
    for name in ("text_document", "loss_mask", "packing_4096"):
        assert not verify(f"{prefix}_{name}").findings
        message = f"{prefix}_{name}: instruction data cannot be compared with its source\\n.*--same-as"
        with pytest.raises(InputError, match=message):
            verify(f"{prefix}_{name}", against_source=True)


def test_command_says_what_was_found(built, cli):
    assert f"{built}: intact\n  102 documents (2 empty), 100 sequences" in cli(f"verify {built}.bin").out
    change_token(built, 5, 799)
    [report] = json.loads(cli(f"verify {built} --json", 1).out)["reports"]
    assert "its content changed" in report["findings"][0]


def test_dataset_that_is_not_there_is_called_that(tmp_path, cli):
    nope = str(tmp_path / "nope")
    output = cli(["verify", nope, f"{nope}.pbin"], 1).out
    assert f"\nmissing  {nope}" in output
    assert f"{nope}: MISSING\n  FAILED: the dataset is there\n  FOUND: {nope}: there is no dataset" in output
    [report] = json.loads(cli(["verify", str(tmp_path), "--json"], 1).out)["reports"]
    assert report["verdict"] == "missing"
    assert "only a folder" in report["findings"][0]


def test_same_as_another_names_the_line(make_config, tmp_path, cli):
    [built] = run_config(make_config(output_prefix=str(tmp_path / "ours"))).datasets
    cli(["verify", built.prefix, "--same-as", f"{GOLDEN}/eod_text_document"])
    records = OWN.docs.read_bytes().splitlines()
    records[7] = json.dumps({"text": "other"}).encode()
    (tmp_path / "changed.jsonl").write_bytes(b"\n".join(records))
    config = make_config(output_prefix=str(tmp_path / "b"), input=(str(tmp_path / "changed.jsonl"),))
    [changed] = run_config(config).datasets
    report = verify(built.prefix, same_as=changed.prefix)
    [finding] = report.findings
    assert report.verdict == "different"
    assert f"{OWN.docs}, line 8; {changed.prefix} has it from {tmp_path}/changed.jsonl, line 8" in finding


def test_caches_that_were_checked_are_named(tmp_path, cli):
    """Each once on a line, of one dataset and of several."""
    prefixes = [write_dataset(tmp_path / name, [[[1, 2, 3, 4]]] * 9) for name in ("a", "b")]
    flags = f"--seq-length 4 --num-samples 4,1,1 --split 3,3,3 --data-cache-path {tmp_path}/cache"
    built = cli(f"index --data-path {' '.join(prefixes)} {flags}").out.splitlines()
    assert sum(", split " in line for line in built) == 9
    names = {path.name.removesuffix("-description.txt") for path in (tmp_path / "cache").glob("*-description.txt")}
    for chosen in (prefixes, prefixes[:1]):
        output = cli(["verify", *chosen, "--cache", str(tmp_path / "cache"), "--executor", "local"]).out
        checked = re.findall("checked: index cache (.*)", output)
        assert len(checked) == len(set(checked))
        assert set(checked) == (names if chosen == prefixes else {name for name in names if not name.startswith("b-")})


CASES = golden_cases()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_caches_of_megatron_are_whole(case):
    caches = list_caches(str(case.cache))
    tasks = [(cache, prefix) for prefix in case.prefixes() for cache in caches if is_cache_of(cache, prefix)]
    assert tasks
    assert [sentence for task in tasks for sentence in verify_cache(*task)] == []


def swap_ends(array):
    array[0], array[-1] = array[-1].copy(), array[0].copy()


def repeat_first(array):
    array[-1] = array[0]


def point_outside(array):
    array[1] = 10**6


def move_token(array):
    array[5, 1] += 1


@pytest.mark.parametrize(("name", "damage", "message"), [
    ("document_index", repeat_first, "not every sequence is there once per epoch"),
    ("document_index", point_outside, "sequence 1000000 is not from 0 to 99"),
    ("document_index", swap_ends, "of the sample index"),
    ("sample_index", move_token, "row 5 of the sample index is at token 321 instead of token 320"),
    ("sample_index", point_outside, "of the sample index"),
    ("shuffle_index", repeat_first, "not every sample is there once per epoch"),
    ("shuffle_index", point_outside, "sample 1000000 is not from 0 to 317"),
])  # fmt: skip
def test_damaged_cache_is_found(name, damage, message, tmp_path):
    case = CASES["own-one_epoch"]
    shutil.copytree(case.cache, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob(f"*{name}.npy")
    array = np.load(path)
    damage(array)
    np.save(path, array)
    [prefix] = case.prefixes()
    [cache] = [candidate for candidate in list_caches(str(tmp_path / "cache")) if is_cache_of(candidate, prefix)]
    findings = verify_cache(cache, prefix)
    assert message in findings[0]
    assert "move its files away and build the cache again" in findings[0]


KEYS = {
    "one": {}, "two": {"json_keys": ("text", "title")}, "joined": {"json_keys": ("title", "text"), "join": " "},
    "paths": {"json_keys": (".meta.tag", "short=.title")}, "ids": {"token_ids": "ids"},
    "program": {"json_keys": ("text", "both=.text + .title")},
}  # fmt: skip
BOTH = {"sample": 0.7, "hold_out": 0.3}
SAMPLES = {"all": {}, "sample": {"sample": 0.6}, "held-out": {"hold_out": 0.3}, "both": BOTH}
WHERE = {"any": {}, "where": {"where": ".n > 5"}}
BAD = {"none": {}, "quarantine": {"on_bad_record": "quarantine"}}
EMPTY = {"keep": {}, "eod": {"empty_documents": "eod"}}
CHOICES = list(product(KEYS, SAMPLES, WHERE, BAD, EMPTY))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Records for builds that stop at a bad one, and those with records that are bad for one key or another."""
    folder = tmp_path_factory.mktemp("sources")
    records = [{"text": f"text {n} " * (n % 4), "title": f"title {n}", "meta": {"tag": f"tag {n}"}} for n in range(60)]
    records = [{**record, "ids": [n, n + 1], "n": n} for n, record in enumerate(records)]
    (folder / "none.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for number, key in ((3, "text"), (20, "title"), (37, "meta"), (41, "ids")):
        del records[number][key]
    (folder / "quarantine.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.quick(24)
@pytest.mark.parametrize("case", CHOICES, ids="-".join)
def test_chosen_records_equal_their_source(case, sources, tmp_path):
    keys, sample, where, bad, empty = case
    chosen = {**KEYS[keys], **SAMPLES[sample], **WHERE[where], **BAD[bad], **EMPTY[empty]}
    config = config_of(BuildConfig, sources / f"{bad}.jsonl", append_eod=True, output_prefix=f"{tmp_path}/d", **chosen)
    for dataset in run_config(config).datasets:
        report = verify(dataset.prefix, against_source=True)
        assert (report.findings, report.verdict) == ((), "intact"), dataset.prefix
