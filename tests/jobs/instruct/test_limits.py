"""Templates that take too much time or memory stop the job."""

import re

import pytest
import yaml

from dsindex.errors import RecordError
from dsindex.instruction.config import check_config
from dsindex.text.guarded import limits
from dsindex.text.guarded.limits import Limits
from tests.jobs.instruct.instruct_jobs import CHATML, job, published
from tests.support.conversations import BAD, CONVERSATIONS
from tests.support.golden import OWN
from tests.support.jobs import run_config

HANGS = (
    "{% set n = namespace(x=(), y=()) %}"
    "{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% set n.y = (n.y, n.y) %}{% endfor %}"
    "{% if 'STOP' in messages[0].content %}{{ n.x == n.y }}{% endif %}" + CHATML
)

SMALL = Limits(cpu_seconds=0.7, memory_bytes=200 << 20)


@pytest.fixture
def stopping(tmp_path):
    """Conversations, one of which the template never finishes; with bad ones around it."""
    lines = CONVERSATIONS.read_bytes().splitlines()[:60]
    never = b'{"conversations": [{"from": "human", "value": "STOP"}, {"from": "gpt", "value": "x"}]}'
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*lines[:40], never, *BAD, *lines[40:], never]) + b"\n")
    return tmp_path / "a.jsonl"


def stopped(tmp_path, template, *options, executor="local"):
    """A command over `a.jsonl`."""
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump({"chat_template": template}))
    given = ["--input", str(tmp_path / "a.jsonl"), "--tokenizer-model", str(OWN.plain_tokenizer)]
    to = ["--output-prefix", str(tmp_path / "out" / "chat"), "--executor", executor, "--workers", "2"]
    return ["instruct", str(tmp_path / "chat.yaml"), *given, *to, *options]


def check_that_it_stops(tmp_path, cli, shard_size, executor):
    """Not set aside, though bad records are: what is written must not depend on a machine's speed."""
    options = ["--on-bad-record", "quarantine", "--shard-size", shard_size]
    assert cli(stopped(tmp_path, HANGS, *options, executor=executor), 1).err.strip().splitlines()[-1] == (
        f"dsindex instruct: {tmp_path}/a.jsonl, line 41: the chat template used more than 0.7 s of CPU time on this "
        "record; change it, or take the record out of the input"
    )
    assert published(tmp_path / "out") == {}


@pytest.mark.quick(1)
@pytest.mark.parametrize(("executor", "shard_size"), [("local", "64MiB"), ("local", "2KiB"), ("processes", "9KiB")])
@pytest.mark.usefixtures("stopping")
def test_record_that_a_template_never_finishes_stops_the_job(tmp_path, cli, monkeypatch, executor, shard_size):
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", SMALL)
    check_that_it_stops(tmp_path, cli, shard_size, executor)


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.usefixtures("stopping", "ray_instance")
def test_record_that_a_template_never_finishes_stops_the_job_on_ray(tmp_path, cli, monkeypatch):
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", SMALL)
    check_that_it_stops(tmp_path, cli, "9KiB", "ray")


def test_bad_record_before_one_that_stops_the_job_goes_first(tmp_path, monkeypatch):
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
            run_config(config, check_config({"chat_template": HANGS}, source="test"))


@pytest.mark.quick(1)
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
def test_record_that_takes_all_memory_or_crashes_stops_the_job(tmp_path, cli, monkeypatch, template, message):
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", Limits(memory_bytes=200 << 20))
    said = cli(stopped(tmp_path, template, executor="processes"), 1).err.strip().splitlines()[-1]
    assert re.fullmatch(rf"dsindex instruct: .*/a\.jsonl, line 1: the chat template .*{message} this record.*", said)
    assert published(tmp_path / "out") == {}


@pytest.mark.usefixtures("stopping")
def test_template_that_cannot_be_compiled_is_said_in_one_sentence(tmp_path, cli):
    template = "{% if a %}" + "{% elif a %}b" * 6000 + "{% endif %}"
    said = cli(stopped(tmp_path, template), 1).err.strip()
    assert re.fullmatch(
        r"dsindex instruct: chat template: too long, or nested too deep, for Python's compiler .*", said
    )
    assert not (tmp_path / "out").exists()
