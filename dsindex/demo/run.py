"""The demo: the workflow `pretraining.py` on generated text, left in the demo's folder to be changed and run again."""

from __future__ import annotations

import glob
import itertools
import json
import os
import random
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dsindex.datasets import GPTDataset
from dsindex.datasets.provenance import read_source
from dsindex.errors import OutputError
from dsindex.store.ownership import remove_named
from dsindex.store.storage import make_folder, open_folder, output_error
from dsindex.text.tokenizer import decode, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


# Folders that a command fills with files of fixed names: marked when new, and used again only with the marker.

DEMO_MARKER = "dsindex-demo.txt"
BENCHMARKS_MARKER = "dsindex-bench.txt"
_MARKS = {DEMO_MARKER: "`dsindex demo`", BENCHMARKS_MARKER: "dsindex's benchmarks"}


def own_folder(path: str, marker: str) -> Path:
    """Create a folder, mark a new or empty one, and accept one that is marked already.

    Args:
        path: The folder; created if missing.
        marker: Name of the marker file, DEMO_MARKER or BENCHMARKS_MARKER.

    Raises:
        OutputError: If it has files but no marker, or cannot be written.
    """
    make_folder(path)
    text = f"This folder was made by {_MARKS[marker]}, which replaces its files: keep others elsewhere.\n".encode()
    try:
        with open_folder(path) as folder:
            names = set(os.listdir(folder))
            if marker not in names and not names:
                _write_note(marker, text, folder)
            elif marker not in names or _read(marker, folder) != text:
                foreign = min(names)
                raise OutputError(
                    f"{path}: expected a new or empty folder, or one with the {marker} that {_MARKS[marker]} wrote, "
                    f"found {foreign!r} in it; choose another --output"
                )
    except OSError as error:
        raise output_error(path, error) from error
    return Path(path)


def clear_names(folder: Path, names: tuple[str, ...]) -> None:
    """Remove files by name from a folder below a marked one, and create the folder if it is missing.

    Raises:
        OutputError: If it is a symbolic link, or one of the names is not a file.
    """
    if folder.is_symlink():
        raise OutputError(f"{folder}: expected a folder, got a symbolic link; remove it, or choose another --output")
    make_folder(str(folder))
    remove_named(str(folder), names)
    for name in names:
        if os.path.lexists(folder / name):
            raise OutputError(f"{folder / name}: expected a file or nothing, got something else; remove it")


def _write_note(name: str, data: bytes, folder: int) -> None:
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY, 0o644, dir_fd=folder)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _read(name: str, folder: int) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        return os.read(descriptor, 1000)
    finally:
        os.close(descriptor)


# The tokenizer of the demo: a byte-level BPE trained on part of the demo's text.

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_TRAINING_BYTES = 3 << 20


def train_demo_tokenizer(jsonl_paths: Iterable[Path], folder: Path, *, vocabulary_size: int = 8000) -> Path:
    """Train a byte-level BPE and write it in the format of `tokenizers` and transformers.

    Args:
        jsonl_paths: Files of records with a `text`; every nth record is used, about 3 MiB of text in all scripts.
        folder: The folder for tokenizer.json and tokenizer_config.json, created if missing.
        vocabulary_size: Largest number of tokens, including `<|endoftext|>` and the 256 bytes.

    Returns:
        The folder, as a value of `--tokenizer-model`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample_texts(list(jsonl_paths)), trainer=trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer_file, config_file = (folder / name for name in TOKENIZER_FILES)
    tokenizer.save(str(tokenizer_file))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT, "model_max_length": 1_000_000}
    config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return folder


def _sample_texts(paths: list[Path]) -> Iterator[str]:
    step = -(-sum(path.stat().st_size for path in paths) // _TRAINING_BYTES)
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number % step == 0:
                    yield json.loads(line)["text"]


# The text of the demo: readable documents in many scripts, made from the word lists in lexicon.toml.
#
# A document depends only on the seed and its position, so it has the same bytes on every machine. Therefore no function
# of the system's mathematics library is used (logarithms differ in the last bit), and no order that depends on hashing.

LEXICON = Path(__file__).with_name("lexicon.toml")
_Item = TypeVar("_Item")
_SLOT = re.compile(r"\{([A-Za-z])\}")
_LONGEST_DOCUMENT = 1500
_ESCAPED_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoDocument:
    """One record of the demo's JSONL files; the field names are its keys."""

    id: int
    title: str
    text: str
    lang: str


DEMO_FILES = 3


def demo_file_names(num_files: int = DEMO_FILES) -> tuple[str, ...]:
    """Return the names of the demo's text files.

    >>> demo_file_names(2)
    ('demo-0.jsonl', 'demo-1.jsonl')
    """
    return tuple(f"demo-{number}.jsonl" for number in range(num_files))


def write_demo_jsonl(
    folder: Path, *, num_documents: int = 6000, num_files: int = DEMO_FILES, seed: int = 2026
) -> list[Path]:
    """Write the demo's documents as JSONL files of about equal numbers of documents.

    Every eighth record is written in ASCII with escapes, as many real dumps are.

    Args:
        folder: The folder, created if missing; files of the same names in it are replaced.
        num_documents: Number of documents in all files together.
        num_files: Number of files, named `demo-0.jsonl`, `demo-1.jsonl`, …
        seed: Seed of the text; the same seed yields the same bytes.

    Returns:
        The files' paths, in the order of the documents.
    """
    if not 1 <= num_files <= num_documents:
        raise ValueError(f"expected from 1 to num_documents={num_documents} files, got num_files={num_files}")
    folder.mkdir(parents=True, exist_ok=True)
    documents = demo_documents(num_documents, seed=seed)
    paths = []
    for number, name in enumerate(demo_file_names(num_files)):
        count = num_documents * (number + 1) // num_files - num_documents * number // num_files
        path = folder / name
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for document in itertools.islice(documents, count):
                record = {"id": document.id, "title": document.title, "text": document.text, "lang": document.lang}
                escaped = document.id % _ESCAPED_EVERY == _ESCAPED_EVERY - 1
                file.write(json.dumps(record, ensure_ascii=escaped) + "\n")
        paths.append(path)
    return paths


def demo_documents(num_documents: int, *, seed: int = 2026) -> Iterator[DemoDocument]:
    """Yield documents with different texts, at random prose, chats, tables or code."""
    rng = random.Random(seed)
    lexicon = tomllib.loads(LEXICON.read_text(encoding="utf-8"))
    emoji = _draw_by_rank(rng, lexicon.pop("emoji"))
    code = lexicon.pop("code")
    english = lexicon["en"]
    identifiers = sorted({word for phrase in english["s"] + english["p"] for word in re.findall("[a-z]{5,}", phrase)})
    languages = [_Language(rng, name, table) for name, table in lexicon.items()]
    programs = [_Language(rng, name, {**table, "space": "\n", "i": identifiers}) for name, table in code.items()]
    kinds = [_write_prose] * 17 + [_write_chat] + [_write_table]
    seen: set[str] = set()
    while len(seen) < num_documents:
        if rng.random() < 0.06:
            language = rng.choice(programs)
            title, text = _write_code(rng, language)
        else:
            language = rng.choice(languages)
            title, text = rng.choice(kinds)(rng, language, emoji)
        if text not in seen:  # short texts can repeat
            yield DemoDocument(id=len(seen), title=title, text=text, lang=language.name)
            seen.add(text)


class _Language:
    """Endless sentences of one language (or snippets of a programming language)."""

    def __init__(self, rng: random.Random, name: str, table: dict[str, Any]) -> None:
        self.name = name
        self.space: str = table["space"]
        words = {slot: phrases for slot, phrases in table.items() if len(slot) == 1}
        words["d"] = [str(number) for number in range(2, 1500)]
        if "names" in table:
            words["n"] = _invent_names(rng, table["names"])
        self.words: dict[str, Iterator[str]] = {}
        for slot, phrases in words.items():
            self.words[slot] = _draw_by_rank(rng, phrases)
            self.words[slot.upper()] = _draw_by_rank(rng, [phrase[:1].upper() + phrase[1:] for phrase in phrases])
        # A template becomes a %-format and the streams that fill it: ten times as fast as replacing slots one by one.
        compiled = [
            (_SLOT.sub("%s", template.replace("%", "%%")), [self.words[slot] for slot in _SLOT.findall(template)])
            for template in table["templates"]
        ]
        self._templates = _draw_by_rank(rng, compiled)

    def sentence(self) -> str:
        pattern, words = next(self._templates)
        return pattern % tuple(map(next, words))


def _draw_by_rank(rng: random.Random, items: list[_Item]) -> Iterator[_Item]:
    """Draw forever, the nth item with weight 1/(n + 1): a shifted Zipf's law, as natural words follow it."""
    cumulative = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(items))))
    while True:
        yield from rng.choices(items, cum_weights=cumulative, k=64)


def _invent_names(rng: random.Random, syllables: list[str]) -> list[str]:
    """Return up to 400 names of two or three syllables: the long tail of rare words."""
    names = ["".join(rng.choices(syllables, k=rng.choice((2, 2, 3)))) for _ in range(400)]
    return [name[:1].upper() + name[1:] for name in dict.fromkeys(names)]


def _draw_length(rng: random.Random) -> int:
    """Draw a number of sentences of at least 1: a product of uniform draws, hence about log-normal."""
    length = 1.9
    for _ in range(6):
        length *= 0.25 + 2.2 * rng.random()
    return min(1 + int(length), _LONGEST_DOCUMENT)


def _write_prose(rng: random.Random, language: _Language, _emoji: Iterator[str]) -> tuple[str, str]:
    paragraphs = []
    remaining = _draw_length(rng)
    while remaining > 0:
        count = min(remaining, rng.randint(2, 9))
        paragraphs.append(language.space.join(language.sentence() for _ in range(count)).rstrip())
        remaining -= count
    return next(language.words["S"]), "\n\n".join(paragraphs)


def _write_chat(rng: random.Random, language: _Language, emoji: Iterator[str]) -> tuple[str, str]:
    friends = list(itertools.islice(language.words["n"], 3))
    lines = []
    for _ in range(1 + _draw_length(rng)):
        said = f"{rng.choice(friends)} {next(emoji)}: {language.sentence().rstrip()}"
        lines.append(f"{said} {next(emoji) * rng.choice((0, 1, 1, 3))}".rstrip())
    return f"{friends[0]} {next(emoji)}", "\n".join(lines)


def _write_table(rng: random.Random, language: _Language, _emoji: Iterator[str]) -> tuple[str, str]:
    words = language.words
    rows = [f"| {next(words['n'])} | {next(words['s'])} | {next(words['l'])} | {next(words['d'])} |"]
    rows.append("|---|---|:--|--:|")
    for _ in range(2 + _draw_length(rng)):
        share = f"{rng.randrange(1000) / 10}%"
        rows.append(f"| {next(words['n'])} | {next(words['s'])} | {next(words['t'])} | {share} |")
    return next(words["L"]), "\n".join(rows) + "\n"


def _write_code(rng: random.Random, language: _Language) -> tuple[str, str]:
    snippets = [language.sentence() for _ in range(1 + min(_draw_length(rng), 60))]
    return f"{next(language.words['i'])}.{language.name}", "\n".join(snippets)


SEQUENCE_LENGTH = 256
SHOWN_SAMPLE = 3
WORKFLOW = Path(__file__).with_name("pretraining.py")
"""A link to workflows/pretraining.py in the repository, a copy of it in an installed package."""
WORKFLOW_FILES = ("pretraining.py", "pretraining.yaml")
OPTIONS = f"""\
build:
  input: {{folder}}/text/*.jsonl
  tokenizer: {{folder}}/tokenizer
  append_eod: true
  output_prefix: {{folder}}/demo
  shard_size: {{shard_size}}
  executor: ray
  replace: true
index:
  seq_length: {SEQUENCE_LENGTH}
  epochs: 2.5
  data_cache_path: {{folder}}/cache
"""


def run_demo(folder: str, *, num_documents: int, run_workflow: Callable[[str, str], int]) -> int:
    """Generate text, train a tokenizer, run the workflow with Ray, and show a sample.

    Args:
        folder: The folder for all files; new, empty, or an earlier demo's, which is replaced.
        num_documents: Number of documents to generate.
        run_workflow: Runs a script with a file of options and returns its exit code.

    Returns:
        The exit code of the workflow.

    Raises:
        OutputError: If the folder holds other files.
    """
    base = own_folder(folder, DEMO_MARKER)
    clear_names(base / "text", demo_file_names())
    clear_names(base / "tokenizer", TOKENIZER_FILES)
    clear_names(base / "cache", ())
    clear_names(base.resolve(), WORKFLOW_FILES)
    _say(f"1. {num_documents:,} documents in many scripts, written to {base / 'text'}")
    inputs = write_demo_jsonl(base / "text", num_documents=num_documents)
    _say(f"2. a byte-level BPE tokenizer, trained on a part of them: {base / 'tokenizer'}")
    tokenizer = train_demo_tokenizer(inputs, base / "tokenizer")
    script, options = (base / name for name in WORKFLOW_FILES)
    script.write_bytes(WORKFLOW.read_bytes())
    shard_size = max(1, sum(path.stat().st_size for path in inputs) // 10)
    options.write_text(OPTIONS.format(folder=base, shard_size=shard_size), encoding="utf-8")
    _say(f"3. build through Ray, merge, index, verify\n   $ python {script} {options}")
    code = run_workflow(str(script), str(options))
    if code == 0:
        _say("4. a training sample, and where it came from")
        _show_sample(base, tokenizer, inputs)
    return code


def _show_sample(base: Path, tokenizer_folder: Path, inputs: list[Path]) -> None:
    """Print one decoded sample of the train split and the input lines of its parts."""
    [description] = glob.glob(os.path.join(base, "cache", "*-GPTDataset-train-description.txt"))
    dataset = GPTDataset.open_cache(description)
    tokenizer = load_tokenizer(str(tokenizer_folder))
    sample = dataset.tokens(SHOWN_SAMPLE)
    text = decode(tokenizer, sample.tolist())
    _write(
        f"   sample {SHOWN_SAMPLE} of {len(dataset):,}: {len(sample)} tokens, of which the model sees {SEQUENCE_LENGTH}"
    )
    for part in dataset.parts(SHOWN_SAMPLE):
        document = dataset.dataset.document_of(part.sequence)
        source = read_source(f"{part.prefix}.provenance.parquet", document)
        _write(
            f"   tokens {part.offset} to {part.offset + part.num_tokens} of document {document}: "
            f"{inputs[source.input]}, line {source.line}"
        )
    excerpt = text.replace(END_OF_TEXT, f"\n{END_OF_TEXT}\n").strip()
    _write("   " + "\n   ".join(excerpt[:700].splitlines()))


def _say(text: str) -> None:
    _write(f"\n{text}")


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# Conversations for the demo and the tests, made from the demo's documents, a few turns each.

_LONGEST_TURN = 400
_MOST_EXCHANGES = 6


def write_demo_conversations(path: Path, *, num_conversations: int, seed: int = 2026) -> None:
    """Write conversations as JSONL; the same seed yields the same bytes."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in demo_conversations(num_conversations, seed=seed):
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def demo_conversations(num_conversations: int, *, seed: int = 2026) -> Iterator[dict[str, Any]]:
    """Yield records with `id`, `conversations` (`from`, `value`), `instruction` and `role`."""
    rng = random.Random(seed)
    for document in demo_documents(num_conversations, seed=seed):
        turns = [document.title, *(line[:_LONGEST_TURN] for line in document.text.splitlines() if line.strip())]
        num_turns = 2 * min(len(turns) // 2, 1 + rng.randrange(_MOST_EXCHANGES))
        yield {
            "id": document.id,
            "conversations": [
                {"from": "gpt" if number % 2 else "human", "value": turn}
                for number, turn in enumerate(turns[:num_turns])
            ],
            "instruction": f"Answer in {document.lang}.",
            "role": "A patient assistant",
        }
