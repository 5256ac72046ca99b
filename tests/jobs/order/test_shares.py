"""--sample and --repeat under the one law, and together with --shuffle-documents."""

import contextlib
import json

import pytest
from pydantic import ValidationError

from dsindex.api.verify import verify
from dsindex.cli.main import main
from dsindex.errors import InputError
from dsindex.options.build import BuildConfig
from tests.jobs.order.ordered_builds import FILES, SEED, build, content, origins, require_whole
from tests.support.golden import OWN
from tests.support.jobs import run_config
from tests.support.published import published


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


def test_small_files_share_shards_where_records_are_held_out(tmp_path):
    (tmp_path / "many").mkdir()
    for number in range(90):
        lines = [json.dumps({"text": f"text {number} {line}", "title": ["a", "b"][: line % 3]}) for line in range(5)]
        (tmp_path / "many" / f"{number:03d}.jsonl").write_text("\n".join([*lines, ""]))
    options = {"input": ("many",), "shard_size": "64KiB"}
    made = build(tmp_path, tmp_path / "out", hold_out=0.3, **options)
    assert made.run.shards < 60
    build(tmp_path, tmp_path / "train", leave_out=0.3, **options)
    build(tmp_path, tmp_path / "valid", sample=0.3, **options)
    valid = {name.replace("x_", "x_valid_"): data for name, data in published(tmp_path / "valid").items()}
    assert published(tmp_path / "out") == {**published(tmp_path / "train"), **valid}
    assert "450 lines = 450 kept + 0 filtered" in str(made)
    assert not (tmp_path / "out" / "x.build").exists()


def test_a_share_without_records_cannot_be_held_out(texts, tmp_path):
    with pytest.raises(
        InputError, match=r"x_valid_text_document: expected records for it with --hold-out 1e-12, got none"
    ):
        build(texts, tmp_path / "out", hold_out=1e-12)
    assert not list((tmp_path / "out").glob("*.bin"))


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


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["b", "./b", "*b", "folder", "folder/*"])
def test_a_repeated_file_is_named_as_an_input_is(texts, tmp_path, name):
    (tmp_path / "folder").mkdir()
    for each in FILES:
        target = tmp_path / "folder" if each == "b" and "folder" in name else tmp_path
        (target / each).write_bytes((texts / each).read_bytes())
    inputs = ("a", "folder/b" if "folder" in name else "b", "c")
    build(tmp_path, tmp_path / "out", input=inputs, repeat=(f"{name}=2",))
    assert [each["path"] for each in content(tmp_path / "out")["inputs"]] == ["a", inputs[1], inputs[1], "c"]


@pytest.mark.parametrize("name", ["d", "*.txt", "/nowhere/b", ".."])
def test_an_unknown_file_cannot_be_repeated(texts, tmp_path, name):
    (tmp_path / "work").mkdir()
    with pytest.raises(InputError, match="expected one of the inputs, got none") as refused:
        build(texts, tmp_path / "out", repeat=(f"{name}=2",), input=("a",) if name != ".." else (str(OWN.docs),))
    assert name in str(refused.value)


def test_a_file_is_repeated_once(texts, tmp_path):
    with pytest.raises(InputError, match="expected each input once, but a was named before"):
        build(texts, tmp_path / "out", repeat=("a=2", "./a=3"))


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


def test_options_are_read_from_a_file(texts, tmp_path, cli, monkeypatch):
    config = tmp_path / "build.yaml"
    config.write_text(
        f"input: [a, b, c]\ntokenizer_model: {OWN.plain_tokenizer}\noutput_prefix: {tmp_path}/y/x\nappend_eod: true\n"
        f"json_keys: [text, title]\non_bad_record: quarantine\nshuffle_documents: {SEED}\nsample: 50%\n"
        f"repeat:\n  a: 1.5\n"
    )
    monkeypatch.chdir(texts)
    assert " kept + " in cli(["build", "--config", str(config)]).out
    build(texts, tmp_path / "out", shuffle_documents=SEED, sample=0.5, repeat=("a=1.5",))
    assert published(tmp_path / "y") == published(tmp_path / "out")


def test_the_command_line_says_what_was_filtered(texts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(texts)
    command = ["build", "--input", "a", "c", "--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix"]
    command += [str(tmp_path / "out/x"), "--sample", "50%", "--repeat", "a=0.5", "--repeat", "c=2"]
    assert main([*command, "--shuffle-documents", "5"]) == 0
    out = content(tmp_path / "out")
    assert f"+ {out['account']['filtered']:,} filtered + 0 quarantined" in capsys.readouterr().out
    assert [each["path"] for each in out["inputs"]] == ["a", "c", "c"]
    assert main([*command, "--shuffle-documents", "-5"]) != 0
