"""Shuffled, sampled, repeated and held-out documents under the one law, and what `verify` says of them."""

import contextlib
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dsindex.api.verify import verify
from dsindex.datasets import IndexedDataset
from dsindex.engine import tokenize
from dsindex.engine.ledger import Ledger
from dsindex.engine.shards import shuffle
from dsindex.engine.shards.shuffle import shuffled_order
from dsindex.errors import InputError
from dsindex.options.build import BuildConfig
from tests.faults.corpus import BROKEN, write_corpus
from tests.support.compressed import COMPRESSORS
from tests.support.golden import OWN
from tests.support.jobs import config_of, run_config
from tests.support.killed import kill_after
from tests.support.published import published

SEED = 3

FILES = {"a": 150, "b": 90, "c": 40}
"""Name and number of lines of each input."""


def build(folder, out, **options):
    own = {"json_keys": ("text", "title"), "append_eod": True, "on_bad_record": "quarantine"}
    own |= {"output_prefix": str(out / "x"), "shard_size": "4KiB"}
    out.mkdir(exist_ok=True)
    with contextlib.chdir(folder):
        return run_config(config_of(BuildConfig, tuple(FILES), **{**own, **options}))


def documents(out, key="text"):
    dataset = IndexedDataset(str(out / f"x_{key}_document"))
    return [dataset.document(number).tolist() for number in range(len(dataset.document_indices) - 1)]


def origins(out, key="text"):
    rows = pq.read_table(out / f"x_{key}_document.provenance.parquet").to_pylist()
    return [(row["input"], row["offset"], row["line"]) for row in rows]


def content(out, key="text"):
    return json.loads((out / f"x_{key}_document.manifest.json").read_bytes())["content"]


def require_whole(out, folder, **options):
    with contextlib.chdir(folder):
        for key in ("text", "title"):
            report = verify(out / f"x_{key}_document", against_source=True, tokenizer=OWN.plain_tokenizer, **options)
            assert report.is_whole, report.findings
            assert "against the source" in str(report)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for seed, (name, num_lines) in enumerate(FILES.items()):
        broken = {7: BROKEN["not JSON"], 20: BROKEN["null"]} if name == "b" else {}
        write_corpus(folder / name, num_lines=num_lines, broken=broken, seed=seed)
    return folder


@pytest.fixture
def small_runs(monkeypatch):
    """Runs and buckets of about 24 KB, so that there are several."""
    monkeypatch.setattr(shuffle, "MIN_RUN_BYTES", 24 << 10)


WAYS = [
    {"shard_size": "64MiB"},
    {"shard_size": "1KiB", "workers": 3},
    {"shard_size": "3KiB", "executor": "processes"},
    {"keep_shards": True},
]


@pytest.mark.quick(2)
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_shuffled_build_is_the_permuted_one(texts, tmp_path, way):
    plain, out = tmp_path / "plain", tmp_path / "out"
    build(texts, plain)
    build(texts, out, shuffle_documents=SEED, **way)
    order = shuffled_order(SEED, len(origins(plain))).tolist()
    for key in ("text", "title"):
        assert documents(out, key) == [documents(plain, key)[number] for number in order]
        assert origins(out, key) == [origins(plain, key)[number] for number in order]
        name = f"x_{key}_document.quarantine.jsonl.zst"
        assert (out / name).read_bytes() == (plain / name).read_bytes()
    assert [each["tokens"] for each in (content(out), content(plain))] == [content(plain)["tokens"]] * 2
    assert content(out)["options"]["shuffle_documents"] == SEED
    assert "shuffle_documents" not in content(plain)["options"]
    require_whole(out, texts)
    left = [path.name for path in (out / "x.build").rglob("*") if path.suffix in {".bin", ".order"}]
    assert bool(left) == ("keep_shards" in way)
    assert not [name for name in left if name.startswith(("run", "bucket"))]


@pytest.mark.quick(1)
@pytest.mark.parametrize("run_bytes", [3000, 24 << 10, 64 << 20])
def test_the_order_does_not_depend_on_runs_and_buckets(texts, tmp_path, monkeypatch, run_bytes):
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    monkeypatch.setattr(shuffle, "MIN_RUN_BYTES", run_bytes)
    build(texts, tmp_path / "out", shuffle_documents=SEED, shard_size="2KiB")
    assert published(tmp_path / "out") == published(tmp_path / "expected")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance", "small_runs")
def test_ray_gives_the_same_order(texts, tmp_path):
    options = {"shuffle_documents": SEED, "sample": "60%", "repeat": ("a=1.5",)}
    build(texts, tmp_path / "expected", **options)
    build(texts, tmp_path / "out", executor="ray", address="auto", shard_size="2KiB", **options)
    assert published(tmp_path / "out") == published(tmp_path / "expected")


def test_a_shuffled_build_works_without_provenance(texts, tmp_path):
    build(texts, tmp_path / "out", shuffle_documents=SEED, no_provenance=True)
    build(texts, tmp_path / "plain", no_provenance=True)
    order = shuffled_order(SEED, len(documents(tmp_path / "plain"))).tolist()
    assert documents(tmp_path / "out") == [documents(tmp_path / "plain")[number] for number in order]
    require_whole(tmp_path / "out", texts)


class Stopped(BaseException):
    """In place of a kill, at a known point."""


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("keep_shards", [False, True], ids=["", "keep-shards"])
@pytest.mark.parametrize("own", [{}, {"repeat": ("a=2",)}, {"hold_out": 0.3}], ids=["", "repeat", "held out"])
def test_an_interrupted_shuffle_goes_on_from_each_point(texts, tmp_path, monkeypatch, keep_shards, own):
    """It does not tokenize again, although the shards are gone by then."""
    out = tmp_path / "out"
    options = {"shuffle_documents": SEED, "keep_shards": keep_shards, **own}
    build(texts, tmp_path / "expected", **options)
    record = Ledger.record_sorted
    num_recorded = 0

    def record_and_stop(ledger, *arguments):
        nonlocal num_recorded
        record(ledger, *arguments)
        num_recorded += 1
        raise Stopped

    def refuse(*_):
        raise AssertionError("a shard is made again")

    stops = 0
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_sorted", record_and_stop)
        while True:
            try:
                build(texts, out, **options)
            except Stopped:
                stops += 1
                patched.setattr(tokenize, "tokenize_shard", refuse)
            else:
                break
                assert stops < 50, "it makes progress"
    assert stops == num_recorded > 6
    assert published(out) == published(tmp_path / "expected")
    assert (out / "x.build").exists() == keep_shards


@pytest.mark.quick(1)
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("suffix", [".bin", ".idx", ".prov", ".order"])
def test_a_damaged_run_is_made_again(texts, tmp_path, monkeypatch, suffix):
    out = tmp_path / "out"
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    record = Ledger.record_sorted

    def stop_at_bucket(ledger, identity, result):
        record(ledger, identity, result)
        if identity.startswith("bucket"):
            raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record_sorted", stop_at_bucket)
        with pytest.raises(Stopped):
            build(texts, out, shuffle_documents=SEED)
    damaged = next(path for path in (out / "x.build/shards").rglob(f"run-*{suffix}") if path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    build(texts, out, shuffle_documents=SEED)
    assert published(out) == published(tmp_path / "expected")


@pytest.mark.quick(1)
@pytest.mark.fault
@pytest.mark.usefixtures("small_runs")
@pytest.mark.parametrize("num_tasks", [1, 6, 8])
def test_a_killed_shuffle_goes_on(texts, tmp_path, num_tasks):
    out = tmp_path / "out"
    out.mkdir()
    command = ["build", "--input", *FILES, "--json-keys", "text", "title", "--append-eod", "--on-bad-record"]
    command += ["quarantine", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(out / "x")]
    command += ["--shard-size", "4KiB", "--executor", "local", "--workers", "2", "--shuffle-documents", str(SEED)]
    setup = f"from dsindex.engine.shards import shuffle; shuffle.MIN_RUN_BYTES = {shuffle.MIN_RUN_BYTES}"
    kill_after("record_sorted", num_tasks, command, folder=texts, setup=setup)
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    build(texts, out, shuffle_documents=SEED)
    assert published(out) == published(tmp_path / "expected")
    assert not (out / "x.build").exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["one.gz", "frames.zst"])
def test_containers_do_not_change_order_and_sample(texts, tmp_path, name):
    packed = tmp_path / "packed"
    packed.mkdir()
    for each in FILES:
        (packed / each).write_bytes(COMPRESSORS[name]((texts / each).read_bytes()))
    options = {"shuffle_documents": SEED, "sample": 0.7, "repeat": ("b=1.5",)}
    build(texts, tmp_path / "expected", **options)
    build(packed, tmp_path / "out", shard_size="1KiB", **options)
    assert documents(tmp_path / "out") == documents(tmp_path / "expected")
    assert origins(tmp_path / "out") == origins(tmp_path / "expected")


def test_an_added_input_continues_kept_shards(texts, tmp_path):
    out = tmp_path / "out"
    build(texts, out, input=("a", "b"), shuffle_documents=SEED, keep_shards=True)
    build(texts, out, shuffle_documents=SEED, keep_shards=True, replace=True)
    build(texts, tmp_path / "expected", shuffle_documents=SEED)
    assert published(out) == published(tmp_path / "expected")


def test_a_sample_keeps_the_same_records_everywhere(texts, tmp_path):
    build(texts, tmp_path / "all")
    build(texts, tmp_path / "out", sample="40%")
    build(texts, tmp_path / "small", sample=0.2, shard_size="1KiB")
    every, kept, few = (set(origins(tmp_path / name)) for name in ("all", "out", "small"))
    assert few < kept < every
    assert 0.3 * len(every) < len(kept) < 0.5 * len(every)
    found = content(tmp_path / "out")
    assert found["options"]["sample"] == 0.4
    account = found["account"]
    assert account["kept"] == len(kept)
    assert account["filtered"] == len(every) - len(kept)
    assert account["lines"] == sum(FILES.values())
    assert account["quarantined"] == 2
    assert account["records"] == account["kept"] + account["filtered"] + account["quarantined"]
    assert sum(each["filtered"] for each in found["inputs"]) == account["filtered"]
    assert "filtered" not in content(tmp_path / "all")["account"]
    require_whole(tmp_path / "out", texts)


def test_a_repeated_file_is_read_whole_and_then_in_part(texts, tmp_path):
    build(texts, tmp_path / "plain")
    build(texts, tmp_path / "out", repeat=("b=2.5",))
    plain, out = origins(tmp_path / "plain"), origins(tmp_path / "out")
    own = {number: [row[1:] for row in plain if row[0] == number] for number in range(3)}
    found = [[row[1:] for row in out if row[0] == number] for number in range(5)]
    assert found[:3] == [own[0], own[1], own[1]]
    assert found[4] == own[2]
    assert set(found[3]) < set(own[1])
    assert 0.3 * len(own[1]) < len(found[3]) < 0.7 * len(own[1])
    inputs = content(tmp_path / "out")["inputs"]
    assert [(each["path"], each.get("share")) for each in inputs] == [
        ("a", None),
        ("b", None),
        ("b", None),
        ("b", 0.5),
        ("c", None),
    ]
    assert "share" not in inputs[0]
    require_whole(tmp_path / "out", texts)


def test_a_part_is_the_sample_of_that_share(texts, tmp_path):
    build(texts, tmp_path / "out", repeat=("a=0.3", "b=0.3", "c=0.3"))
    build(texts, tmp_path / "sample", sample=0.3)
    assert origins(tmp_path / "out") == origins(tmp_path / "sample")


HELD_OUT = {
    "small shards": {"shard_size": "700B", "workers": 3},
    "one key": {"json_keys": ("text",), "no_provenance": True},
    "processes": {"executor": "processes"},
    "with a sample": {"sample": "80%", "repeat": ("b=2.5",)},
    "shuffled": {"shuffle_documents": SEED, "shard_size": "1KiB"},
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", HELD_OUT.values(), ids=HELD_OUT)
def test_what_is_held_out_is_what_the_sample_has(texts, tmp_path, way):
    """Both datasets are those of builds of these records alone, manifests included."""
    build(texts, tmp_path / "out", hold_out="20%", **way)
    same = {name: value for name, value in way.items() if name not in {"executor", "shard_size"}}
    build(texts, tmp_path / "train", leave_out="20%", **same)
    build(texts, tmp_path / "valid", **{**same, "sample": 0.2})
    valid = {name.replace("x_", "x_valid_"): data for name, data in published(tmp_path / "valid").items()}
    assert published(tmp_path / "out") == {**published(tmp_path / "train"), **valid}
    assert not (tmp_path / "out" / "x.build").exists()
    if "json_keys" not in way:
        require_whole(tmp_path / "train", texts)
    with contextlib.chdir(texts):
        path = tmp_path / "out" / "x_valid_text_document"
        report = verify(path, against_source=True, tokenizer=OWN.plain_tokenizer)
    assert report.is_whole, report.findings


@pytest.mark.parametrize(("options", "message"), [
    ({"hold_out": 0.5, "leave_out": 0.5}, "expected either --leave-out or --hold-out"),
    ({"hold_out": 0.5, "sample": 0.5}, "expected --hold-out with a smaller share"),
    ({"leave_out": 1}, "expected --leave-out with a smaller share"),
    ({"hold_out": 0.1, "json_keys": ("text", "valid_text")}, "expected outputs of different names"),
])  # fmt: skip
def test_shares_that_leave_no_records_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        BuildConfig(input=("a",), tokenizer_model="t", output_prefix="o", **options)


@pytest.mark.exhaustive
def test_all_together_are_whole_for_any_cut(texts, tmp_path):
    options = {"shuffle_documents": SEED, "sample": "70%", "repeat": ("a=1.4", "c=0.5")}
    build(texts, tmp_path / "expected", **options)
    build(texts, tmp_path / "out", shard_size="700B", workers=3, **options)
    assert published(tmp_path / "out") == published(tmp_path / "expected")
    require_whole(tmp_path / "out", texts)
    require_whole(tmp_path / "out", texts, sample=0.5)


def test_condition_and_token_ids_go_with_order_and_sample(texts, tmp_path):
    """Samples of token ids are those of any cut, and --where counts with the sample."""
    records = [json.loads(line) for line in (texts / "a").read_bytes().splitlines() if line.strip()]
    lines = [
        {"ids": [number % 50, 1, 2][: number % 4], "size": len(each["text"])} for number, each in enumerate(records)
    ]
    (tmp_path / "ids").write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    options = {
        "input": ("ids",), "token_ids": "ids", "where": ".size > 20", "sample": 0.5, "repeat": ("ids=1.5",),
        "shuffle_documents": SEED, "on_bad_record": "fail",
    }  # fmt: skip
    for name, shard_size in (("out", "500B"), ("expected", "64MiB")):
        (tmp_path / name).mkdir()
        with contextlib.chdir(tmp_path):
            config = {"tokenizer_model": str(OWN.plain_tokenizer), "output_prefix": f"{name}/x", "append_eod": True}
            run_config(BuildConfig(**config, **options, shard_size=shard_size))
    assert published(tmp_path / "out") == published(tmp_path / "expected")
    account = content(tmp_path / "out", "ids")["account"]
    assert 0.3 * len(lines) < account["kept"] < account["filtered"]
    with contextlib.chdir(tmp_path):
        report = verify("out/x_ids_document", against_source=True, tokenizer=OWN.plain_tokenizer)
    assert report.is_whole, report.findings


@pytest.mark.parametrize("name", ["d", "*.txt", "/nowhere/b", ".."])
def test_an_unknown_file_cannot_be_repeated(texts, tmp_path, name):
    (tmp_path / "work").mkdir()
    with pytest.raises(InputError, match="expected one of the inputs, got none") as refused:
        build(texts, tmp_path / "out", repeat=(f"{name}=2",), input=("a",) if name != ".." else (str(OWN.docs),))
    assert name in str(refused.value)


def test_a_sample_without_records_is_refused(texts, tmp_path):
    with pytest.raises(InputError, match="expected a record that --sample keeps, got none of 2"):
        build(texts, tmp_path / "out", sample=1e-12)
    assert not list((tmp_path / "out").glob("*.bin"))


WRONG = {
    **dict.fromkeys(("sample", "hold_out"), (0, "0%", "101%", 1.5, "10 percent", "-5%", True, float("nan"))),
    "shuffle_documents": (-1, "x", 1.5, True, 2**63),
    "repeat": (*((each,) for each in ("a", "a=", "=2", "a=0", "a=-1", "a=nan", "a=1e3", "a=1001")), {"a": "x"}),
}


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in WRONG.items() for value in values])
def test_options_that_cannot_be_are_refused(option, value):
    with pytest.raises(ValidationError):
        BuildConfig(input=("a",), tokenizer_model="t", output_prefix="o", **{option: value})


@pytest.mark.usefixtures("small_runs")
def test_verify_finds_documents_in_the_wrong_place(texts, tmp_path):
    """Two documents of one length are exchanged, so that only the source or the provenance can tell."""
    out = tmp_path / "out"
    build(texts, out, shuffle_documents=SEED)
    prefix = out / "x_title_document"
    found = documents(out, "title")
    first, second = next(
        (one, two)
        for one in range(len(found))
        for two in range(one)
        if len(found[one]) == len(found[two]) and found[one] != found[two]
    )
    dataset = IndexedDataset(str(prefix))
    tokens = np.fromfile(f"{prefix}.bin", dataset.dtype)
    starts = np.concatenate(([0], np.cumsum([len(each) for each in found])))
    for place, source in ((first, second), (second, first)):
        tokens[starts[place] : starts[place + 1]] = found[source]
    tokens.tofile(f"{prefix}.bin")
    with contextlib.chdir(texts):
        report = verify(prefix, against_source=True, tokenizer=OWN.plain_tokenizer)
    assert not report.is_whole
    assert any(f"document {min(first, second)} differs" in each for each in report.findings) or any(
        f"document {max(first, second)} differs" in each for each in report.findings
    )


def test_verify_finds_wrong_rows_of_shuffled_documents(texts, tmp_path):
    out = tmp_path / "out"
    build(texts, out, shuffle_documents=SEED)
    build(texts, tmp_path / "other", shuffle_documents=SEED + 1)
    name = "x_text_document.provenance.parquet"
    (out / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with contextlib.chdir(texts):
        report = verify(out / "x_text_document")
    assert any("its place in the shuffled order" in finding for finding in report.findings)
