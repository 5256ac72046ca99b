"""`dsindex instruct`: the one law for tokens, masks and blocks, what is refused and how it is said."""

from __future__ import annotations

import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from dsindex.datasets.indexed import IndexedDataset
from dsindex.datasets.instruction import PackedInstructionDataset
from dsindex.errors import BadRecordError, InputError, PlanError, RecordError, RecordProblem
from dsindex.guarded import limits
from dsindex.guarded.limits import Limits
from dsindex.instruction.config import check_config, parse_config
from dsindex.instruction.encoder import InstructionEncoder
from dsindex.instruction.records import parse_record
from dsindex.instruction.splits import split_by_hash
from dsindex.instruction.tokens import ChatTokenizer
from dsindex.shards.provenance import read_source
from tests.support.chat_tokenizers import train
from tests.support.conversations import BAD, CONVERSATIONS, SPEC, SPEC_RECORD, SPEC_YAML
from tests.support.golden import OWN
from tests.support.killed import run_until_killed
from workflows.cli import main
from workflows.demo.conversations import demo_conversations, write_demo_conversations
from workflows.jobs import frame as job_frame
from workflows.jobs import instruct
from workflows.jobs.instruct import InstructReport, run_instruct
from workflows.options.instruct import InstructConfig

if TYPE_CHECKING:
    from pathlib import Path

    from dsindex.shards.tokenize import ShardResult, ShardTask
    from workflows.progress.reporter import Reporter

pytestmark = pytest.mark.slow

SPLIT_IN_PARTS = check_config({**SPEC, "max_length": 768, "too_long": "split"}, source="test")
CHATML = """\
{%- for message in messages %}{% if message.role == 'assistant' %}
{{- 'ASSISTANT: ' }}{% generation %}{{ message.content + '<|endoftext|>' }}{% endgeneration %}
{%- else %}{{ message.role | upper + ': ' + message.content + '\\n' }}{% endif %}{% endfor %}"""
WAYS = [
    {"executor": "local", "shard_size": "64MiB", "workers": 1},
    {"executor": "local", "shard_size": "3KiB", "workers": 3},
    {"executor": "processes", "shard_size": "40KiB", "workers": 2},
]
RAY_WAY = {"executor": "ray", "shard_size": "30KiB", "workers": 2}


def job(prefix: Path, **options: Any) -> InstructConfig:
    defaults: dict[str, Any] = {
        "input": (str(CONVERSATIONS),),
        "tokenizer_model": str(OWN.plain_tokenizer),
        "output_prefix": str(prefix),
        "executor": "local",
        "workers": 2,
        "shard_size": "16KiB",
        "seq_length": 768,
        "split": "8,1,1",
        "on_bad_record": "quarantine",
    }
    return InstructConfig(**{**defaults, **options})


def published(folder: Path) -> dict[str, bytes]:
    """All published files; of the manifests, the part that is under the law."""
    return {
        path.name: json.dumps(json.loads(path.read_bytes())["content"]).encode()
        if path.name.endswith("manifest.json")
        else path.read_bytes()
        for path in sorted(folder.iterdir())
        # A killed driver leaves its lock; the progress file tells of the run.
        if path.is_file() and not path.name.endswith((".dsindex-lock", ".progress.json"))
    }


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations with every kind of bad record among them."""
    path = tmp_path_factory.mktemp("inputs") / "broken.jsonl"
    lines = CONVERSATIONS.read_bytes().splitlines()[:120]
    path.write_bytes(b"\n".join([*lines[:50], *BAD, b"", *lines[50:]]) + b"\n")
    return path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, broken: Path, module_reporter: Reporter) -> dict[str, bytes]:
    """What every way of doing the same has to give."""
    folder = tmp_path_factory.mktemp("expected")
    config = job(folder / "chat", input=(str(broken),), shard_size="64MiB", workers=1)
    run_instruct(config, SPLIT_IN_PARTS, reporter=module_reporter)
    return published(folder)


@pytest.fixture(scope="module")
def module_reporter() -> Reporter:
    from workflows.progress.displays import PlainDisplay
    from workflows.progress.reporter import Reporter

    return Reporter(PlainDisplay(seconds=1e9))


def test_conversations_are_those_of_the_generator(tmp_path: Path) -> None:
    write_demo_conversations(tmp_path / "c.jsonl", num_conversations=240)
    assert (tmp_path / "c.jsonl").read_bytes() == CONVERSATIONS.read_bytes()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.slow
def test_same_bytes_for_any_shard_size_and_executor(
    tmp_path: Path, broken: Path, expected: dict[str, bytes], way: dict[str, Any], quiet: Reporter
) -> None:
    run_instruct(job(tmp_path / "chat", input=(str(broken),), **way), SPLIT_IN_PARTS, reporter=quiet)
    assert published(tmp_path) == expected
    assert len(expected) == 3 * (3 * 3 + 2)  # per split three datasets, provenance and quarantine


@pytest.mark.slow
def test_same_bytes_through_a_chat_template_for_any_shard_size_and_executor(
    tmp_path: Path, broken: Path, quiet: Reporter
) -> None:
    """Whole conversations are rendered by blocks, parts of split ones a few at a time."""
    instruction = check_config(
        {"chat_template": CHATML, "max_length": 120, "too_long": "split", "record_format": "sharegpt"}, source="test"
    )
    for number, way in enumerate(WAYS):
        config = job(tmp_path / str(number) / "chat", input=(str(broken),), **way)
        report = run_instruct(config, instruction, reporter=quiet)
        assert sum(split.statistics.sequences - split.statistics.conversations for split in report.splits) > 10
    assert published(tmp_path / "0") == published(tmp_path / "1") == published(tmp_path / "2")


@pytest.mark.ray
@pytest.mark.usefixtures("ray_instance")
def test_same_bytes_on_ray(tmp_path: Path, broken: Path, expected: dict[str, bytes], quiet: Reporter) -> None:
    run_instruct(job(tmp_path / "chat", input=(str(broken),), **RAY_WAY), SPLIT_IN_PARTS, reporter=quiet)
    assert published(tmp_path) == expected


def test_same_bytes_after_a_failure_and_no_shard_twice(
    tmp_path: Path,
    broken: Path,
    expected: dict[str, bytes],
    quiet: Reporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []
    encode_shard = instruct.encode_shard

    def fail_after_some(task: ShardTask, settings: Any) -> ShardResult:
        if len(done) == 3:
            raise InputError("the storage went away")
        result = encode_shard(task, settings)
        done.append(task.shard)
        return result

    def count(task: ShardTask, settings: Any) -> ShardResult:
        done.append(task.shard)
        return encode_shard(task, settings)

    config = job(tmp_path / "chat", input=(str(broken),), workers=1)
    monkeypatch.setattr(instruct, "encode_shard", fail_after_some)
    with pytest.raises(InputError, match="the storage went away"):
        run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    assert published(tmp_path) == {}
    monkeypatch.setattr(instruct, "encode_shard", count)
    run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    assert published(tmp_path) == expected
    assert sorted(done) == list(range(len(done)))
    assert len(done) > 4
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_same_bytes_after_publishing_was_cut_off(
    tmp_path: Path, broken: Path, expected: dict[str, bytes], quiet: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens go last: where their .idx stands, mask and blocks are whole."""
    config = job(tmp_path / "chat", input=(str(broken),))
    publish, calls = job_frame.publish, []

    def fail_third(dataset: Any, manifest: bytes) -> None:
        calls.append(dataset.target.prefix)
        if len(calls) == 3:
            raise InputError("the storage went away")
        publish(dataset, manifest)

    monkeypatch.setattr(job_frame, "publish", fail_third)
    with pytest.raises(InputError, match="the storage went away"):
        run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    assert [os.path.basename(prefix) for prefix in calls] == [
        "chat_train_packing_768",
        "chat_train_loss_mask",
        "chat_train_text_document",
    ]
    assert not (tmp_path / "chat_train_text_document.idx").exists()
    monkeypatch.setattr(job_frame, "publish", publish)
    run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    assert published(tmp_path) == expected


@pytest.mark.slow
def test_same_bytes_after_a_kill(tmp_path: Path, broken: Path, expected: dict[str, bytes]) -> None:
    """The command, killed once some shards are committed; the same command again."""
    out = tmp_path / "out"
    config = tmp_path / "chat.yaml"
    config.write_text(yaml.safe_dump({**SPEC, "max_length": 768, "too_long": "split"}))
    command = ["instruct", str(config), "--input", str(broken)]
    command += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(out / "chat")]
    command += ["--seq-length", "768", "--split", "8,1,1", "--on-bad-record", "quarantine"]
    command += ["--shard-size", "1KiB", "--executor", "local", "--workers", "1"]
    run_until_killed(command, num_shards=3)
    assert published(out) == {}
    assert main(command) == 0
    assert published(out) == expected


def test_datasets_are_what_the_encoder_gives(tmp_path: Path, quiet: Reporter) -> None:
    """Read with the package's own readers: tokens and masks by split, every sequence in one block, provenance."""
    report = run_instruct(job(tmp_path / "chat"), SPLIT_IN_PARTS, reporter=quiet)
    encoder = InstructionEncoder(SPLIT_IN_PARTS, ChatTokenizer.from_path(OWN.plain_tokenizer))
    encoded = []
    for line, text in enumerate(CONVERSATIONS.read_bytes().splitlines(), 1):
        with contextlib.suppress(RecordProblem):
            encoded.append((line, encoder.encode(parse_record(text))))
    for split in report.splits:
        name = split.prefix.rpartition("_")[2]
        own = [entry for entry in encoded if split_by_hash(entry[1].fingerprint, fractions=(8, 1, 1)) == name]
        texts, masks = (IndexedDataset(f"{split.prefix}_{what}") for what in ("text_document", "loss_mask"))
        assert (texts.dtype, masks.dtype) == (np.uint16, np.uint8)
        assert np.array_equal(texts.document_indices, masks.document_indices)
        assert np.array_equal(np.concatenate(list(texts)), np.concatenate([item.tokens for _, item in own]))
        assert np.array_equal(np.concatenate(list(masks)), np.concatenate([item.mask for _, item in own]))
        blocks = PackedInstructionDataset(split.prefix, sequence_length=768, pad_id=0)
        statistics = split.statistics
        # A first token is nobody's target, and the BOS is never trained on: nothing is lost between mask and loss mask.
        assert sum(int(block.loss_mask.sum()) for block in blocks) == statistics.learnt  # type: ignore[attr-defined]
        assert len(blocks) == split.packing.blocks  # type: ignore[union-attr]
        assert blocks.plan.num_padding == split.packing.padding  # type: ignore[union-attr]
        assert sorted(blocks.plan.conversations.tolist()) == list(range(statistics.sequences))
        last = len(own) - 1
        assert read_source(f"{split.prefix}_text_document.provenance.parquet", last).line == own[last][0]
    assert sum(split.statistics.conversations for split in report.splits) == report.counts.kept == len(encoded)


def test_blocks_of_the_demo_are_99_percent_full(tmp_path: Path, quiet: Reporter) -> None:
    write_demo_conversations(tmp_path / "demo.jsonl", num_conversations=600)
    config = job(tmp_path / "out" / "demo", input=(str(tmp_path / "demo.jsonl"),), split=None, seq_length=2048)
    instruction = check_config({**SPEC, "max_length": 2048, "too_long": "truncate"}, source="test")
    report = run_instruct(config, instruction, reporter=quiet)
    packing = report.splits[0].packing
    assert packing is not None
    assert packing.fill >= 0.99
    tokens = report.splits[0].statistics.tokens
    assert packing.fill == pytest.approx(tokens / (packing.blocks * 2048), abs=1e-6)


def test_command_takes_the_yaml_of_the_spec_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = train("bytes")
    (tmp_path / "tokenizer.json").write_text(tokenizer._json)
    (tmp_path / "spec.yaml").write_text(SPEC_YAML)
    (tmp_path / "spec.jsonl").write_text(json.dumps(SPEC_RECORD) + "\n")
    given = ["--input", str(tmp_path / "spec.jsonl"), "--tokenizer-model", str(tmp_path / "tokenizer.json")]
    command = ["instruct", str(tmp_path / "spec.yaml"), *given, "--output-prefix", str(tmp_path / "out" / "spec")]
    assert main([*command, "--executor", "local"]) == 0
    expected = InstructionEncoder(parse_config(SPEC_YAML), tokenizer).encode(SPEC_RECORD)
    assert IndexedDataset(f"{tmp_path}/out/spec_text_document")[0].tolist() == expected.tokens.tolist()
    assert IndexedDataset(f"{tmp_path}/out/spec_loss_mask")[0].tolist() == expected.mask.tolist()
    shown = capsys.readouterr().out
    assert "1 line = 1 kept + 0 quarantined + 0 blank" in shown
    assert f"1 conversation, 1 sequence, {len(expected.tokens)} tokens, {expected.mask.sum()} trainable" in shown
    assert main([*command, "--executor", "local"]) == 0
    assert "already complete: the same plan was carried out before, nothing was done" in capsys.readouterr().out
    for name in ("text_document", "loss_mask"):
        assert main(["verify", f"{tmp_path}/out/spec_{name}"]) == 0


@pytest.mark.parametrize("shape", ["messages", "sharegpt", "alpaca"])
def test_usual_shapes_give_the_same_tokens_through_a_chat_template(tmp_path: Path, shape: str) -> None:
    """The job's section in the configuration, and the converters, reached by `record_format`."""
    records = list(demo_conversations(40))
    texts = [[turn["value"] for turn in record["conversations"][:2]] for record in records]
    shapes: dict[str, Any] = {
        "messages": lambda a, b: {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]},
        "sharegpt": lambda a, b: {"conversations": [{"from": "human", "value": a}, {"from": "gpt", "value": b}]},
        "alpaca": lambda a, b: {"instruction": a, "input": "", "output": b},
    }
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(shapes[shape](*pair)) + "\n" for pair in texts))
    (tmp_path / "template.jinja").write_text(CHATML)
    described = {
        "chat_template_file": "template.jinja",
        "record_format": shape,
        "job": {
            "input": str(tmp_path / "in.jsonl"),
            "output-prefix": str(tmp_path / "out" / "chat"),
            "tokenizer_model": str(OWN.plain_tokenizer),
            "executor": "local",
        },
    }
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(described))
    assert main(["instruct", str(tmp_path / "chat.yaml")]) == 0
    dataset, masks = (IndexedDataset(f"{tmp_path}/out/chat_{name}") for name in ("text_document", "loss_mask"))
    tokenizer = ChatTokenizer.from_path(OWN.plain_tokenizer)
    for number, (question, answer) in enumerate(texts):
        text = f"USER: {question}\nASSISTANT: {answer}<|endoftext|>"
        assert dataset[number].tolist() == tokenizer.encode(text).ids.tolist()
        assert tokenizer.decode(dataset[number][masks[number] == 1].astype(np.uint32)).endswith("<|endoftext|>")


@pytest.mark.parametrize(("line", "kind"), BAD.items(), ids=BAD.values())
def test_first_bad_record_is_named_with_file_and_line(tmp_path: Path, line: bytes, kind: str, quiet: Reporter) -> None:
    good = CONVERSATIONS.read_bytes().splitlines()
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good[:5], line, *good[5:9], line]))
    config = job(tmp_path / "out" / "chat", input=(str(tmp_path / "a.jsonl"),), on_bad_record="fail", shard_size="700B")
    with pytest.raises(BadRecordError, match=rf"a\.jsonl, line 6: .* \({kind}\)"):
        run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)


def test_bad_records_are_counted_by_kind(tmp_path: Path, broken: Path, quiet: Reporter) -> None:
    config = job(tmp_path / "chat", input=(str(broken),), split=None)
    report = run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    content = json.loads((tmp_path / "chat_text_document.manifest.json").read_bytes())["content"]
    assert content["bad_records"] == report.bad_records
    assert report.bad_records.keys() >= set(BAD.values())
    assert sum(report.bad_records.values()) == report.counts.quarantined == content["account"]["quarantined"]
    assert report.counts.lines == 120 + len(BAD) + 1
    assert (tmp_path / "chat_text_document.quarantine.jsonl.zst").exists()
    assert main(["verify", str(tmp_path / "chat_text_document")]) == 0
    with pytest.raises(InputError, match="more than the 2 of --max-bad-records"):
        run_instruct(config.model_copy(update={"max_bad_records": "2", "fresh": True}), SPLIT_IN_PARTS, reporter=quiet)


@pytest.mark.slow
def test_another_plan_is_refused_and_fresh_replaces_its_packing(tmp_path: Path, quiet: Reporter) -> None:
    config = job(tmp_path / "chat", split=None)
    run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    shorter = SPLIT_IN_PARTS.model_copy(update={"max_length": 512})
    with pytest.raises(PlanError, match="max_length was 768 and is 512"):
        run_instruct(config, shorter, reporter=quiet)
    run_instruct(config.model_copy(update={"seq_length": 512, "fresh": True}), shorter, reporter=quiet)
    names = {path.name for path in tmp_path.iterdir()}
    assert "chat_packing_512.idx" in names
    assert not any("packing_768" in name for name in names)


@pytest.mark.slow
def test_fresh_leaves_datasets_of_like_names(tmp_path: Path, quiet: Reporter) -> None:
    for name in ("chat", "chat_packing_v2", "chat_packing_7"):
        run_instruct(job(tmp_path / name, split=None), SPLIT_IN_PARTS, reporter=quiet)
    before = published(tmp_path)
    config = job(tmp_path / "chat", split=None, seq_length=1024, fresh=True)
    run_instruct(config, SPLIT_IN_PARTS, reporter=quiet)
    after = published(tmp_path)
    gone = {name for name in before if name not in after}
    assert gone == {name for name in before if name.startswith("chat_packing_768.")}
    others = [name for name in before if name.startswith(("chat_packing_v2", "chat_packing_7_"))]
    assert [after[name] for name in others] == [before[name] for name in others]


@pytest.mark.slow
def test_added_inputs_continue(tmp_path: Path, broken: Path, quiet: Reporter) -> None:
    both = (str(CONVERSATIONS), str(broken))
    run_instruct(job(tmp_path / "a" / "chat", keep_shards=True), SPLIT_IN_PARTS, reporter=quiet)
    grown = run_instruct(job(tmp_path / "a" / "chat", input=both), SPLIT_IN_PARTS, reporter=quiet)
    whole = run_instruct(job(tmp_path / "b" / "chat", input=both), SPLIT_IN_PARTS, reporter=quiet)
    assert published(tmp_path / "a") == published(tmp_path / "b")
    assert without_prefix(grown) == without_prefix(whole)


def without_prefix(report: InstructReport) -> list[Any]:
    return [(split.statistics, split.packing, split.files) for split in report.splits]


HANGS = (
    "{% set n = namespace(x=()) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
    "{% if 'STOP' in messages[0].content %}{{ {}.get(n.x) }}{% endif %}" + CHATML
)
SMALL = Limits(cpu_seconds=0.7, memory_bytes=200 << 20)


@pytest.fixture
def stopping(tmp_path: Path) -> Path:
    """Conversations, one of which the template never finishes; with bad ones around it."""
    lines = CONVERSATIONS.read_bytes().splitlines()[:60]
    never = b'{"conversations": [{"from": "human", "value": "STOP"}, {"from": "gpt", "value": "x"}]}'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:40], never, *BAD, *lines[40:], never]) + b"\n")
    return tmp_path / "a.jsonl"


def stopped(tmp_path: Path, template: str, *options: str, executor: str = "local") -> list[str]:
    """A command over `a.jsonl`."""
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump({"chat_template": template}))
    given = ["--input", str(tmp_path / "a.jsonl"), "--tokenizer-model", str(OWN.plain_tokenizer)]
    to = ["--output-prefix", str(tmp_path / "out" / "chat"), "--executor", executor, "--workers", "2"]
    return ["instruct", str(tmp_path / "chat.yaml"), *given, *to, *options]


def check_that_it_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str], shard_size: str, executor: str) -> None:
    """Not set aside, though bad records are: what is written must not depend on a machine's speed."""
    options = ["--on-bad-record", "quarantine", "--shard-size", shard_size]
    assert main(stopped(tmp_path, HANGS, *options, executor=executor)) == 1
    assert capsys.readouterr().err.strip().splitlines()[-1] == (
        f"dsindex instruct: {tmp_path}/a.jsonl, line 41: the chat template used more than 0.7 s of CPU time on this "
        "record; change it, or take the record out of the input"
    )
    assert published(tmp_path / "out") == {}


@pytest.mark.parametrize(("executor", "shard_size"), [("local", "64MiB"), ("local", "2KiB"), ("processes", "9KiB")])
@pytest.mark.usefixtures("stopping")
@pytest.mark.slow
def test_record_that_a_template_never_finishes_stops_the_job(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    executor: str,
    shard_size: str,
) -> None:
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", SMALL)
    check_that_it_stops(tmp_path, capsys, shard_size, executor)


@pytest.mark.ray
@pytest.mark.usefixtures("stopping", "ray_instance")
def test_record_that_a_template_never_finishes_stops_the_job_on_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", SMALL)
    check_that_it_stops(tmp_path, capsys, "9KiB", "ray")


def test_bad_record_before_one_that_stops_the_job_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quiet: Reporter
) -> None:
    never = '{"conversations": [{"from": "human", "value": "STOP"}, {"from": "gpt", "value": "x"}]}'
    good = never.replace("STOP", "go")
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", SMALL)
    for lines, said in (
        ([good, "{bad", never], r"line 2: .*\(bad-json\)"),
        ([good, never, "{bad"], "line 2: the chat"),
    ):
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        config = job(tmp_path / "out" / "chat", input=(str(tmp_path / "a.jsonl"),), split=None, on_bad_record="fail")
        with pytest.raises(RecordError, match=said):
            run_instruct(config, check_config({"chat_template": HANGS}, source="test"), reporter=quiet)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("{{ 'a' * 10**10 }}{% generation %}{% endgeneration %}", "200 MiB of memory on", id="memory"),
        pytest.param(
            "{{ ('a' * 10**5) | replace(old='a', new='b' * 10**5) }}{% generation %}{% endgeneration %}",
            "200 MiB of memory on",
            id="replace",
        ),
        pytest.param(
            "{% set n = namespace(x=()) %}{% for i in range(15) %}{% for j in range(10000) %}{% set n.x = (n.x,) %}"
            "{% endfor %}{% endfor %}{{ {}.get(n.x) }}{% generation %}{% endgeneration %}",
            "crashed on",
            id="levels",
        ),
    ],
)
@pytest.mark.usefixtures("stopping")
@pytest.mark.slow
def test_record_that_takes_all_memory_or_crashes_stops_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, template: str, message: str
) -> None:
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", Limits(memory_bytes=200 << 20))
    assert main(stopped(tmp_path, template, executor="processes")) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.fullmatch(rf"dsindex instruct: .*/a\.jsonl, line 1: the chat template .*{message} this record.*", said)
    assert published(tmp_path / "out") == {}


@pytest.mark.usefixtures("stopping")
def test_template_that_cannot_be_compiled_is_said_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = "{% if a %}" + "{% elif a %}b" * 6000 + "{% endif %}"
    assert main(stopped(tmp_path, template)) == 1
    said = capsys.readouterr().err.strip()
    assert re.fullmatch(
        r"dsindex instruct: chat template: too long, or nested too deep, for Python's compiler .*", said
    )
    assert not (tmp_path / "out").exists()


def test_construction_has_the_same_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", SMALL)
    record = {"role": "x", "instruction": "y", "conversations": [{"from": "gpt", "value": "z"}]}
    deep = json.dumps(record)[:-1] + ', "deep": ' + "[" * 400 + "]" * 400 + "}"
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(record)}\n{deep}\n")
    options = {
        **SPEC,
        "jq_patterns": {**{name: f".{name}" for name in record}, "role": "([..|..|..] | length | tostring)"},
    }
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(options))
    command = ["instruct", str(tmp_path / "chat.yaml"), "--input", str(tmp_path / "a.jsonl"), "--executor", "local"]
    command += ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", str(tmp_path / "out" / "chat")]
    assert main([*command, "--on-bad-record", "quarantine"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"a\.jsonl, line 2: the jq pattern .* (used|needed) more than .* on this record; change it", said)
    assert published(tmp_path / "out") == {}


@pytest.mark.parametrize(
    ("text", "options", "code", "message"),
    [
        ("message_construction: [role]", ["--seq-length", "1"], 2, "--seq-length: expected at least 2, got 1"),
        ("message_construction: [role]", ["--split", "98"], 2, "expected the shares of train, valid and test"),
        ("message_construction: [role]", ["--split", "0,0,0"], 2, "with a sum above 0"),
        ("{message_construction: [role], max_length: 99}", ["--seq-length", "64"], 2, "must fit into a block"),
        ("{message_construction: [role], job: 5}", [], 1, "expected the section job to be a mapping"),
        ("{message_construction: [role], job: {inptu: x}}", [], 2, "there is no option 'inptu'"),
        ("{message_construction: [role], packing: 5}", [], 1, "packing: no such option"),
        ("{message_construction: [role], special_tokens: {x: a b c}}", [], 1, "expected exactly one id of its own"),
        ("special_tokens: {}", [], 1, "chat template"),
        ("message_construction: [role", [], 1, "expected YAML"),
    ],
)
def test_wrong_options_are_said_in_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    options: list[str],
    code: int,
    message: str,
) -> None:
    (tmp_path / "chat.yaml").write_text(text)
    given = ["--input", str(CONVERSATIONS), "--tokenizer-model", str(OWN.plain_tokenizer)]
    command = ["instruct", str(tmp_path / "chat.yaml"), *given, "--output-prefix", str(tmp_path / "out" / "x")]
    assert main([*command, *options, "--executor", "local"]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
