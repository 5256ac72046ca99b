"""`--jq-pattern`: the text that it selects, bad records, and patterns that never finish."""

import re

import pytest

from dsindex.engine.start import Estimate
from dsindex.errors import InputError
from dsindex.text.guarded import limits
from dsindex.text.guarded.limits import Limits
from dsindex.text.selection import open_pattern
from tests.jobs.pack.packing import TOKENIZER, said
from tests.support.jobs import run_config

# jq patterns.

PATTERNS = {
    "key": (".text", '{"text": "a", "b": {"c": 1}}', "a"),
    "key with spaces": (' ."raw text" ', '{"raw text": "a"}', "a"),
    "key in brackets": ('.["é"]', '{"é": "a"}', "a"),
    "path": (".meta.text", '{"meta": {"text": "a"}}', "a"),
    "list": ('.chat | join("; ")', '{"chat": ["a", "b"]}', "a; b"),
    "number kept as it stands": (".id | tostring", '{"id": 12345678901234567890}', "12345678901234567890"),
    "messages": ('[.m[] | .role + ": " + .content] | join("\\n")', '{"m": [{"role": "u", "content": "x"}]}', "u: x"),
    "NUL": (".t.u", '{"t": {"u": "a\\u0000b"}}', "a\0b"),
}


@pytest.mark.parametrize(("pattern", "line", "text"), PATTERNS.values(), ids=PATTERNS)
def test_pattern_gives_the_text(pattern, line, text):
    assert list(open_pattern(pattern).read_lines([line.encode()])) == [[text]]


BAD_RECORDS = {
    "list under the key": (".text", '{"text": ["a"]}', "expected a string under the key 'text', got a list"),
    "number under the key": (".text", '{"text": 5}', "expected a string under the key 'text', got a number"),
    "no key": (".text", '{"b": 1}', "expected the key 'text', got only 'b'"),
    "nothing": (".a.b", "{}", r"expected a string from the jq pattern '\.a\.b', got null"),
    "number": (".a.b", '{"a": {"b": 5}}', "expected a string from the jq pattern .*, got a number"),
    "several": (".a[]", '{"a": ["x", "y"]}', "expected one value, got 2"),
    "fails": (".a.b", '{"a": 5}', "pattern `.a.b` fails: Cannot index number"),
    "no JSON": (".a.b", '{"a": {"b": "x"}} {}', "expected JSON, got an error at column 19"),
    "no object": (".[0]", '["a"]', "expected a JSON object, got a list"),
    "lone surrogate": (".a.b", '{"a": {"b": "\\ud800"}}', "pattern `.a.b` fails: .*surrogate"),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize(("pattern", "line", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS)
@pytest.mark.parametrize("shard_size", ["10B", "64MiB"])
def test_pattern_without_a_text_makes_a_bad_record(pattern, line, message, shard_size, make_pack, tmp_path):
    good = '{"text": "x", "a": {"b": "x"}}\n' if pattern != ".a[]" else '{"a": ["x"]}\n'
    (tmp_path / "a.jsonl").write_text(good + line + "\n" + good * 2)
    config = make_pack(input=(str(tmp_path / "a.jsonl"),), jq_pattern=pattern, shard_size=shard_size)
    if pattern == ".[0]":
        with pytest.raises(InputError, match="line 1"):
            run_config(config)
        return
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: .*{message}"):
        run_config(config)


def test_a_pattern_that_is_no_key_runs_in_processes(make_pack, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": {"b": "x"}}\n')
    config = make_pack(input=(str(tmp_path / "a.jsonl"),), jq_pattern=".a.b", executor="auto", workers=1)
    assert run_config(config).run.executor == "processes"


DEEP = '{"a": {"b": "x"}, "c": ' + "[" * 400 + "]" * 400 + "}"
"""`[..|..|..]` has 10 million answers for it."""


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["local", "processes"])
@pytest.mark.parametrize("is_in_sample", [True, False])
def test_record_that_jq_never_finishes_stops_the_job(tmp_path, capsys, monkeypatch, executor, is_in_sample):
    """Not set aside, though bad records are: what is written must not depend on a machine's speed."""
    monkeypatch.setattr(limits, "DEFAULT_LIMITS", Limits(cpu_seconds=0.5, memory_bytes=200 << 20))
    if not is_in_sample:
        monkeypatch.setattr("dsindex.jobs.pack.examine_sample", lambda *_, **__: Estimate(tokens=1, documents=1))
    lines = ['{"a": {"b": "x"}}', '{"a": 5}', "", DEEP, '{"a": {"b": "y"}}', DEEP]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    code, shown = said(
        capsys,
        *("--input", tmp_path / "a.jsonl", *TOKENIZER, "--output", tmp_path / "out" / "x.pbin"),
        *("--jq-pattern", "[..|..|..] as $all | .a.b", "--executor", executor, "--shard-size", "100B"),
        *("--on-bad-record", "quarantine"),
    )
    assert code == 1
    assert re.search(
        r"^dsindex pack: /.*/a\.jsonl, line 4: the jq pattern `\[\.\.\|\.\.\|\.\.\] as \$all \| \.a\.b` "
        r"(used|needed) more than .* on this record; change it, or take the record out of the input$",
        shown,
        re.MULTILINE,
    )
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_file()] == ["x.progress.json"]
