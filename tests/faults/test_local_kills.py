"""A local driver killed at any point: the same command again ends with the same bytes and does nothing twice."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
import xxhash

from tests.faults.corpus import BROKEN, TOKENIZER, committed_shards, write_corpus
from tests.faults.zygote import Strike
from tests.support.published import published

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.timeout(1800)
"""The long form's, on a busy machine."""

SHORT = {"build": 5, "changed": 4, "merge": 3, "pack": 3}
LONG = {"build": 80, "changed": 40, "merge": 30, "pack": 40}
"""Points per scenario, besides those of the renames."""
RENAMES = {"changed": ("_document.", 10), "pack": (r"/packed\.(?!progress)", 4)}
"""Pattern of the published files and their number: .bin, provenance, quarantine, .idx and manifest of two keys;
provenance, quarantine, .pbin and manifest. The progress file is rewritten by the clock and does not count."""

ALL_END = ("--empty-documents", "eod")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command, what stands in the output folder before it, and what stands there after it."""

    prepared: Path
    arguments: list[str]
    """With `{out}` for the output folder."""
    expected: dict[str, bytes] = field(default_factory=dict)
    num_calls: int = 0

    def command(self, out):
        return [argument.format(out=out) for argument in self.arguments]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    kinds = list(BROKEN.values())
    for number, name in enumerate("abc"):
        broken = dict(zip(range(9 + number, 120, 11), kinds[number * 4 :], strict=False))
        write_corpus(folder / f"{name}.jsonl", num_lines=120, broken=broken, seed=number)
    return [str(folder / f"{name}.jsonl") for name in "abc"]


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory, inputs, zygote):
    base = tmp_path_factory.mktemp("scenarios")
    build = ["build", *TOKENIZER, "--json-keys", "text", "title", "--on-bad-record", "quarantine", "--workers", "2"]
    build += ["--shard-size", "6KiB", "--output-prefix", "{out}/x"]
    pack = ["pack", *TOKENIZER[:2], "--on-bad-record", "quarantine", "--workers", "2", "--shard-size", "6KiB"]
    pack += ["--output", "{out}/packed.pbin", "--work-dir", "{out}/x.build", "--pbin-era", "2024-01-30"]

    def prepare(name, *arguments):
        folder = base / name
        folder.mkdir()
        if arguments:
            assert zygote.run(base / "run", [argument.format(out=folder) for argument in arguments]).code == 0
        return folder

    def merge_parts():
        folder = prepare("merge")
        for name, path in zip("abc", inputs, strict=True):
            part = [*build[:-1], str(base / "parts" / name), "--input", path]
            assert zygote.run(base / "run", part).code == 0
        return folder

    mended = str(base / "mended.jsonl")

    def change_inputs():
        """Build of three inputs, of which one is changed; one will be left out, one added, and the third is moved."""
        write_corpus(base / "mended.jsonl", num_lines=90, broken={}, seed=4)
        folder = prepare("changed", *build, *ALL_END, "--keep-shards", "--input", mended, inputs[1], inputs[2])
        write_corpus(base / "mended.jsonl", num_lines=90, broken={}, seed=5)
        return folder

    parts = [str(base / "parts" / f"{name}_text_document") for name in "abc"]
    given = {
        "build": Scenario(prepared=prepare("build"), arguments=[*build, "--input", *inputs]),
        "changed": Scenario(
            prepared=change_inputs(),
            arguments=[*build, *ALL_END, "--replace", "--input", inputs[2], inputs[0], mended],
        ),
        "merge": Scenario(
            prepared=merge_parts(),
            arguments=["merge", "--input", *parts, "--output-prefix", "{out}/x_text_document", "--workers", "2"],
        ),
        "pack": Scenario(
            prepared=prepare("pack", *pack, "--keep-shards", "--input", *inputs[1:]),
            arguments=[*pack, "--replace", "--input", *inputs],
        ),
    }
    return {name: undisturbed(scenario, base / f"{name}-whole", zygote) for name, scenario in given.items()}


def undisturbed(scenario, out, zygote):
    """Find out how a command ends that nothing disturbs, and how many points there are."""
    copy_prepared(scenario, out)
    ended = zygote.run(out.parent / "run", scenario.command(out))
    assert ended.code == 0, ended.errors
    assert ended.calls
    assert ended.tokenized or scenario.arguments[0] == "merge"
    return Scenario(
        prepared=scenario.prepared,
        arguments=scenario.arguments,
        expected=published(out),
        num_calls=len(ended.calls),
    )


def copy_prepared(scenario, out):
    """Copy what stands before the command; plans name their output, and those of the copy are to name the copy."""
    shutil.copytree(scenario.prepared, out)
    for path in out.glob("*.build/journal.jsonl"):
        lines = [line[17:].replace(bytes(scenario.prepared), bytes(out)) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(b"%s %s\n" % (xxhash.xxh3_64_hexdigest(line).encode(), line) for line in lines))


def points(num_calls, count):
    """Spread `count` points over all calls, the first and the last among them."""
    return sorted({round(number * (num_calls - 1) / (count - 1)) for number in range(count)})


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SHORT)
def test_killed_driver_continues(name, scenarios, zygote, tmp_path, is_long):
    scenario = scenarios[name]
    wanted = points(scenario.num_calls, (LONG if is_long else SHORT)[name])
    num_killed = 0
    for number, at in enumerate(wanted):
        out = tmp_path / str(at)
        copy_prepared(scenario, out)
        before = published(out)
        strike = Strike(at=at, what="tear" if number % 2 else "kill")
        killed = zygote.run(tmp_path / "run", scenario.command(out), strike)
        num_killed += killed.code == -9
        assert killed.code in {0, -9}, killed.errors  # threads may save a few calls: the last point may not be reached
        what_stands_is_whole(out, before, scenario.expected)
        committed = committed_shards(out / "x.build")
        again = zygote.run(tmp_path / "run", scenario.command(out))
        assert_continued(again, scenario, out, committed if "--replace" not in scenario.arguments else set())
        shutil.rmtree(out)
    assert num_killed >= 0.6 * len(wanted)


@pytest.mark.parametrize("name", ["changed", pytest.param("pack", marks=pytest.mark.exhaustive)])
def test_killed_before_every_rename_of_publishing(name, scenarios, zygote, tmp_path):
    """An older output stands where the new one goes: no moment mixes the two."""
    scenario = scenarios[name]
    place, num_renames = RENAMES[name]
    copy_prepared(scenario, tmp_path / "counted")
    renames = Strike(place=place, name="replace")
    whole = zygote.run(tmp_path / "run", scenario.command(tmp_path / "counted"), renames)
    for at in range(len(whole.calls) - num_renames, len(whole.calls)):
        out = tmp_path / str(at)
        copy_prepared(scenario, out)
        before = published(out)
        assert zygote.run(tmp_path / "run", scenario.command(out), replace(renames, at=at)).code == -9
        what_stands_is_whole(out, before, scenario.expected)
        again = zygote.run(tmp_path / "run", scenario.command(out))
        assert_continued(again, scenario, out, set())
        assert again.tokenized == []
        shutil.rmtree(out)


def assert_continued(again, scenario, out, committed):
    assert again.code == 0, again.errors
    assert published(out) == scenario.expected
    assert [path.name for path in out.iterdir() if path.is_dir()] == []
    assert sorted(committed & set(again.tokenized)) == []


def what_stands_is_whole(out, before, after):
    """An .idx stands only beside its own whole .bin; a .pbin only whole; a manifest only beside all of its files."""
    stands = published(out)
    datasets = {"x_text_document": ("bin", "idx"), "x_title_document": ("bin", "idx"), "packed": ("pbin",)}
    for stem, suffixes in datasets.items():
        files = [f"{stem}.{suffix}" for suffix in suffixes]
        if files[-1] in stands:
            assert [stands.get(file) for file in files] in (
                [before.get(file) for file in files],
                [after[file] for file in files],
            )
        manifest = f"{stem}.manifest.json"
        if manifest in stands:
            source = before if stands[manifest] == before.get(manifest) else after
            own = [name for name in source if name.startswith(f"{stem}.")]
            assert [name for name in own if stands.get(name) != source[name]] == []


@pytest.mark.exhaustive
def test_killed_again_and_again(scenarios, zygote, tmp_path):
    """A run of kills, each a little after the start: no work is lost, so it ends."""
    scenario = scenarios["build"]
    out = tmp_path / "out"
    out.mkdir()
    committed = set()
    for number in range(60):
        # On a busy machine more of the calls come by the clock, so every run gets a few more.
        ended = zygote.run(tmp_path / "run", scenario.command(out), Strike(at=72 + 3 * number))
        assert not committed & set(ended.tokenized)
        committed = committed_shards(out / "x.build")
        if ended.code == 0:
            break
    assert ended.code == 0
    assert published(out) == scenario.expected
