import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsindex.engine.identity import Plan, describe_inputs, describe_settings
from dsindex.engine.inputs import MAX_SHARDS, InputFile, choose_shard_size, choose_shard_sizes, find_inputs, plan_shards
from dsindex.options.numbers import parse_size


def file_of(name, size=10, version="1"):
    return InputFile(path=name, absolute_path=f"/{name}", size_bytes=size, version=version)


@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=8), shard_size=st.integers(1, 120))
def test_plan_shards_cuts_every_input_once_in_order(sizes, shard_size):
    tasks = list(plan_shards([file_of(str(n), size) for n, size in enumerate(sizes)], shard_size))
    assert [task.shard for task in tasks] == list(range(len(tasks)))
    for number, size in enumerate(sizes):
        own = [task for task in tasks if task.input == number]
        assert [task.begin for task in own] == list(range(0, size, shard_size))
        assert [task.end for task in own] == [*(task.begin for task in own[1:]), size]


@pytest.mark.parametrize("total", [1, 10**9, 10**13, 10**15])
def test_choose_shard_size_keeps_builds_below_a_hundred_thousand_shards(total):
    size = choose_shard_size(total, 64 << 20)
    assert size >= 64 << 20
    assert -(-total // size) <= MAX_SHARDS


MIB = 1 << 20


@pytest.mark.parametrize(("megabytes", "sizes"), [
    ([1], [2]), ([41], [2]), ([65], [4]), ([1024], [32]), ([4096], [64]), ([41] * 3, [2, 4, 4]),
    ([1, 4096, 1], [2, 64, 64]), ([1, 7_199_999], [2, 72]),
], ids=str)  # fmt: skip
def test_small_jobs_get_small_shards(megabytes, sizes):
    files = [file_of(str(n), size * MIB) for n, size in enumerate(megabytes)]
    assert [-(-size // MIB) for size in choose_shard_sizes(files)] == sizes


@given(sizes=st.lists(st.integers(1, 1 << 32), min_size=2, max_size=9), split=st.integers(1, 8))
def test_inputs_added_at_the_end_change_no_shard(sizes, split):
    files = [file_of(str(n), size) for n, size in enumerate(sizes)]
    assert choose_shard_sizes(files)[:split] == choose_shard_sizes(files[:split])


def test_input_that_occurs_again_is_cut_as_before():
    """Its shards are known by path and range, and its parts by path."""
    files = [file_of("a", MIB), file_of("b", 4096 * MIB), file_of("a", MIB)]
    assert choose_shard_sizes(files) == [2 * MIB, 64 * MIB, 2 * MIB]


def test_find_inputs_keeps_the_order_given_and_sorts_patterns(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c[1].jsonl", "z.jsonl"):
        (tmp_path / name).write_text("{}\n")
    found = find_inputs([str(tmp_path / "z.jsonl"), str(tmp_path / "[ab].jsonl"), str(tmp_path / "c[1].jsonl")])
    assert [file.path.rpartition("/")[2] for file in found] == ["z.jsonl", "a.jsonl", "b.jsonl", "c[1].jsonl"]


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64MiB", 64 << 20), ("1.5 GB", 1_500_000_000), ("2kib", 2048), (7, 7)]
)
def test_parse_size_reads_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 TB2", "1e3"])
def test_parse_size_refuses_anything_else(text):
    with pytest.raises(ValueError, match="expected a size such as"):
        parse_size(text)


SETTINGS = {"tokenizer": "aa", "append-eod": 0}
OLD = Plan(settings=SETTINGS, inputs=(file_of("a"), file_of("b"))).to_json()


@pytest.mark.parametrize(("settings", "inputs", "message"), [
    ({}, [file_of("a"), file_of("b")], None),
    ({}, [file_of("a"), file_of("new"), file_of("b")], "1 input was added"),
    ({"append-eod": None}, [file_of("a"), file_of("b")], "append-eod was on (token 0) and is off"),
    ({"engine": "x"}, [file_of("a"), file_of("b")], 'engine was not set and is "x"'),
    ({}, [file_of("a")], "the input /b is missing from --input"),
    ({}, [file_of("a"), file_of("b", 11)], "the input /b was written again (10 bytes then, 11 now)"),
    ({}, [file_of("a"), file_of("b", version="2")], "the input /b was written again (10 bytes then, 10 now)"),
    ({}, [file_of("b"), file_of("a")], "the inputs are in another order"),
])  # fmt: skip
def test_describe_changes_names_each(settings, inputs, message):
    plan = Plan(settings={**SETTINGS, **settings}, inputs=tuple(inputs))
    changes = [*describe_settings(OLD, plan), *describe_inputs(OLD, plan)]
    assert changes == ([] if message is None else [message])


def test_plan_id_depends_on_every_setting_and_input():
    plans = [
        Plan(settings=SETTINGS, inputs=(file_of("a"),)),
        Plan(settings={**SETTINGS, "x": 1}, inputs=(file_of("a"),)),
        Plan(settings=SETTINGS, inputs=(file_of("a", 11),)),
        Plan(settings=SETTINGS, inputs=(file_of("a", version="2"),)),
    ]
    assert len({plan.plan_id for plan in plans}) == len(plans)
