"""Passwords and signatures in addresses are shown by no command, wherever the address comes from."""

import contextlib
import json
from pathlib import Path

import pytest

from dsindex.cli.main import main
from dsindex.cli.parser import COMMANDS, make_parser
from dsindex.commands.api import build
from dsindex.datasets.opening import open as open_dataset
from dsindex.errors import DsindexError
from tests.support.golden import OWN

SECRET = "hunter2-planted"
ADDRESSES = [
    f"s3://user:{SECRET}@bucket/key", f"s3://user:{SECRET}/x@bucket/key", f"gs://bucket/key?X-Goog-Signature={SECRET}",
    f"https://user:{SECRET}@127.0.0.1:9/a/b.jsonl", f"https://user:{SECRET}@[::1/b.jsonl",
    f"http://127.0.0.1:9/a.jsonl?sig={SECRET}", f"ray://user:{SECRET}@127.0.0.1:9",
    f"FTP://user:{SECRET}@host/x#{SECRET}", f"hf://user:{SECRET}@datasets/a/b/c",
]  # fmt: skip
GIVEN = {"--output-prefix": "out/o", "--tokenizer-model": "t", "--input": "i.jsonl"}
"""What commands are given beside the flag that is tried."""


def run(words, capfd):
    with contextlib.suppress(SystemExit):
        main(words)
    return "".join(capfd.readouterr())


@pytest.fixture
def folder(in_folder, monkeypatch):
    """The working folder, with a record; no store is there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")  # commands set some of them
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("dsindex.store.objects._RETRIES", {"max_retries": 0})
    (in_folder / "i.jsonl").write_text('{"text": "a"}\n')
    return in_folder


@pytest.mark.quick(3)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("folder")
def test_no_flag_of_a_command_shows_a_secret(command, capfd):
    subparser = make_parser(command)._subparsers._group_actions[0].choices[command]
    actions = [action for action in subparser._actions if action.nargs != 0 and action.dest != "help"]
    flags = {flag for action in actions for flag in action.option_strings}
    needed = [action for action in actions if not action.option_strings and action.nargs not in {"?", "*"}]
    for number, action in enumerate(actions):
        flag = action.option_strings[-1] if action.option_strings else None
        beside = [word for name, value in GIVEN.items() if name in flags - {flag} for word in (name, value)]
        positionals = ["x" for other in needed if other is not action]
        for address in ADDRESSES[number % 3 :: 3]:
            words = [command, *beside, *positionals, f"{flag}={address}" if flag else address]
            output = run(words, capfd)
            assert SECRET not in output, words
    written = [path for path in Path.cwd().rglob("*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_file_of_options_shows_a_secret(address, folder, capfd):
    (folder / "list").write_text(f"{address}\n")
    quoted = json.dumps(address)
    texts = {
        "input.yaml": f"input: [{quoted}]\ntokenizer-model: {OWN.plain_tokenizer}\noutput-prefix: out/y",
        "others.yaml": f"input: [i.jsonl]\nworkers: {quoted}\nshard-size: {quoted}\nunknown: {quoted}\n{quoted}: 1",
        "output.yaml": f"input: [i.jsonl]\ntokenizer-model: {quoted}\noutput-prefix: {quoted}\naddress: {quoted}",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    common = ["--tokenizer-model", str(OWN.plain_tokenizer), "--output-prefix", "out/x"]
    outputs = [run(["build", "--input-list", "list", *common], capfd)]
    outputs += [run([command, "--config", name], capfd) for name in texts for command in ("build", "merge", "mix")]
    outputs.append(run(["instruct", "others.yaml", *common, "--input", "i.jsonl", "--debug"], capfd))
    assert not [text for text in outputs if SECRET in text]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.usefixtures("folder")
def test_no_error_of_a_function_holds_a_secret(address):
    for call in (
        lambda: open_dataset(address),
        lambda: build(address, tokenizer=OWN.plain_tokenizer, output_prefix="out/x"),
        lambda: build("i.jsonl", tokenizer=OWN.plain_tokenizer, output_prefix=address),
        lambda: build("i.jsonl", tokenizer=OWN.plain_tokenizer, output_prefix="out/x", workers=address),
        lambda: build("i.jsonl", tokenizer=OWN.plain_tokenizer, output_prefix="out/x", address=address),
    ):
        with pytest.raises((DsindexError, ValueError, TypeError, OSError)) as raised:
            call()
        assert SECRET not in str(raised.value)


@pytest.mark.exhaustive
def test_no_recorded_address_shows_a_secret(folder, capfd):
    """Manifests, plans and ledgers that others have written may have addresses as people have them."""
    source = str(folder / "i.jsonl")
    Path(source).write_text('{"text": "a text"}\n' * 30)
    common = ["--tokenizer-model", str(OWN.plain_tokenizer), "--append-eod", "--output-prefix", "out/d"]
    assert main(["build", "--input", source, *common, "--keep-shards"]) == 0
    assert main(["merge", "--input", "out/d_text_document", "--output-prefix", "out/m"]) == 0
    prefix = "out/d_text_document"
    contents = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    recorded = [path for path, content in contents.items() if source.encode() in content]
    assert {path.name for path in recorded} >= {"d_text_document.manifest.json"}
    for address in ADDRESSES[::2]:
        for path in recorded:
            path.write_bytes(contents[path].replace(source.encode(), address.replace("/", "\\/").encode()))
        commands = [
            ["inspect", prefix], ["inspect", prefix, "--document", "3"], ["inspect", "out/d.build"],
            ["trace", prefix, "--sample", "3"],
            ["verify", prefix, "--against-source"], ["verify", "out/m"],
            ["report", prefix, "-o", f"r{len(address)}.html"],
            ["verify", prefix, "--same-as", "out/m"],
            ["build", "--input", source, *common], ["merge", "--input", prefix, "--output-prefix", "out/n"],
            ["mix", prefix], ["convert", prefix, "out/c.pbin"],
        ]  # fmt: skip
        for words in commands:
            output = run(words, capfd)
            assert SECRET not in output, (words, output)
        written_files = [path for path in Path().rglob("*") if path.is_file() and path not in recorded]
        assert not [path for path in written_files if SECRET.encode() in path.read_bytes()]
