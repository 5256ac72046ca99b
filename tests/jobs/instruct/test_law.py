"""The one law for `dsindex instruct` where replies are left out, and for exports of inputs in a bucket."""

import json

import pytest

from dsindex.engine.progress import Reporter
from dsindex.errors import InputError
from dsindex.instruction.config import check_config
from dsindex.jobs import instruct
from dsindex.jobs.instruct import run_instruct
from tests.jobs.instruct import instruct_jobs
from tests.support.conversations import CONVERSATIONS, SPEC

MARKED = check_config(
    {
        "chat_template": "{{ greeting }}{%- for message in messages %}{% if message.role == 'assistant' %}"
        "{% generation %}{{ message.content + '<|endoftext|>' }}{% endgeneration %}{% else %}"
        "{{ '<' + message.role + '>' + message.content }}{% endif %}{% endfor %}"
    },
    source="test",
)
"""A template that writes a variable of the record."""
CONSTRUCTED = check_config({**SPEC, "max_length": 768, "too_long": "truncate"}, source="test")
EXPORTED = {"export": ("parquet", "bridge")}
WAYS = [
    {"shard_size": "3KiB", "workers": 1},
    {"executor": "processes", "shard_size": "40KiB"},
    pytest.param({"executor": "ray", "shard_size": "20KiB"}, marks=[pytest.mark.ray]),
]


@pytest.fixture(scope="module")
def way(request):
    """A way of running a job; Ray is started before the test begins."""
    options = request.param
    if options.get("executor") == "ray":
        request.getfixturevalue("ray_instance")
    return options


def job(prefix, source, **options):
    return instruct_jobs.job(prefix, **{"input": (source,), "shard_size": None, "on_bad_record": "fail", **options})


def published(folder):
    """All files but those that tell of the run; of the manifests, the part that is under the law without its paths."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.name.endswith("manifest.json"):
            content = json.loads(path.read_bytes())["content"]
            names = ("digests", "statistics", "splits", "bad_records", "packing")
            found[str(path.relative_to(folder))] = json.dumps({name: content.get(name) for name in names}).encode()
        elif path.is_file() and not path.name.endswith((".dsindex-lock", ".progress.json")):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def run(config, instruction, *, fails_after=None):
    """Run a job; with `fails_after`, once with a failure after so many shards, and then again."""
    reporter = Reporter()
    if fails_after is not None:
        encode_shard, done = instruct.encode_shard, []

        def fail(task, settings):
            if len(done) == fails_after:
                raise InputError("the storage went away")
            done.append(task.shard)
            return encode_shard(task, settings)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instruct, "encode_shard", fail)
            with pytest.raises(InputError, match="the storage went away"):
                run_instruct(config, instruction, reporter=reporter)
    return run_instruct(config, instruction, reporter=reporter)


@pytest.fixture(scope="module")
def unusual(tmp_path_factory):
    """Records with weights, tools, parts and variables of their own."""
    lines = []
    for number, line in enumerate(CONVERSATIONS.read_bytes().splitlines()[:60]):
        record = json.loads(line)
        record["conversations"][1]["weight"] = number % 3
        record["conversations"][0]["value"] = [{"type": "text", "text": record["conversations"][0]["value"]}]
        record |= {"tools": "[]", "chat_template_kwargs": {"greeting": str(number % 5)}}
        lines.append(json.dumps(record).encode())
    path = tmp_path_factory.mktemp("unusual") / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


@pytest.fixture(scope="module")
def found(tmp_path_factory, unusual):
    folder = tmp_path_factory.mktemp("found")
    config = job(folder / "chat", str(unusual), seq_length=4096, on_bad_record="quarantine", workers=1)
    report = run(config, MARKED)
    # A weight of 2 is refused; a conversation whose only reply has weight 0 has nothing to learn.
    assert sorted(report.bad_records) == ["bad-field", "nothing-learnt"]
    assert report.bad_records["bad-field"] == 20
    return published(folder)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", [*WAYS, {"shard_size": "6KiB", "fails_after": 2, "workers": 1}], ids=str, indirect=True)
def test_same_bytes_where_replies_are_left_out(tmp_path, unusual, found, way):
    options = dict(way)
    fails_after = options.pop("fails_after", None)
    config = job(tmp_path / "chat", str(unusual), seq_length=4096, on_bad_record="quarantine", **options)
    run(config, MARKED, fails_after=fails_after)
    assert published(tmp_path) == found


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports of a file on the disk."""
    folder = tmp_path_factory.mktemp("exported")
    source = folder / "in" / "chats.jsonl"
    source.parent.mkdir()
    source.write_bytes(b"\n".join(CONVERSATIONS.read_bytes().splitlines()[:60]) + b"\n")
    config = job(folder / "out" / "chat", str(source), workers=1, **EXPORTED)
    run(config, CONSTRUCTED)
    return published(folder / "out")
