"""Generate the text of the demo and the tests: readable documents in many scripts, from the word lists in lexicon.toml.

A document depends only on the seed and its position, so it has the same bytes on every machine. For this reason, the
code calls no function of the system's math library (logarithms differ in the last bit) and uses no order that depends
on hashing.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def write_demo_jsonl(folder: Path, *, num_documents: int = 6000, num_files: int = 3, seed: int = 2026) -> list[Path]:
    """Write documents to `demo-0.jsonl`, `demo-1.jsonl`, …; every eighth is ASCII with escapes, like many dumps."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = demo_documents(num_documents, seed=seed)
    paths = []
    for number in range(num_files):
        count = num_documents * (number + 1) // num_files - num_documents * number // num_files
        path = folder / f"demo-{number}.jsonl"
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for document in itertools.islice(documents, count):
                is_escaped = document.id % _ESCAPED_EVERY == _ESCAPED_EVERY - 1
                file.write(json.dumps(asdict(document), ensure_ascii=is_escaped) + "\n")
        paths.append(path)
    return paths


def demo_documents(num_documents: int, *, seed: int = 2026) -> Iterator[DemoDocument]:
    """Yield distinct documents; the seed decides which are prose, chats, tables or code."""
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
    """Generates sentences of one language, or snippets of one programming language."""

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
        # Compile each template to a %-format and the streams that fill it: 10 times as fast as replacing its slots.
        compiled = [
            (_SLOT.sub("%s", template.replace("%", "%%")), [self.words[slot] for slot in _SLOT.findall(template)])
            for template in table["templates"]
        ]
        self._templates = _draw_by_rank(rng, compiled)

    def sentence(self) -> str:
        pattern, words = next(self._templates)
        return pattern % tuple(map(next, words))


def _draw_by_rank(rng: random.Random, items: list[_Item]) -> Iterator[_Item]:
    """Draw items forever, the nth (from 1) with weight 1/(n + 1): a shifted Zipf's law, like words in natural text."""
    cumulative = list(itertools.accumulate(1 / (rank + 2) for rank in range(len(items))))
    while True:
        yield from rng.choices(items, cum_weights=cumulative, k=64)


def _invent_names(rng: random.Random, syllables: list[str]) -> list[str]:
    """Return up to 400 names of two or three syllables, which give the text a long tail of rare words."""
    names = ["".join(rng.choices(syllables, k=rng.choice((2, 2, 3)))) for _ in range(400)]
    return [name[:1].upper() + name[1:] for name in dict.fromkeys(names)]


def _draw_length(rng: random.Random) -> int:
    """Draw a number of sentences, at least 1: a product of uniform draws, which is roughly log-normal."""
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
        line = f"{rng.choice(friends)} {next(emoji)}: {language.sentence().rstrip()}"
        lines.append(f"{line} {next(emoji) * rng.choice((0, 1, 1, 3))}".rstrip())
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


_LONGEST_TURN = 400
_MAX_EXCHANGES = 6


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
        num_turns = 2 * min(len(turns) // 2, 1 + rng.randrange(_MAX_EXCHANGES))
        yield {
            "id": document.id,
            "conversations": [
                {"from": "gpt" if number % 2 else "human", "value": turn}
                for number, turn in enumerate(turns[:num_turns])
            ],
            "instruction": f"Answer in {document.lang}.",
            "role": "A patient assistant",
        }
