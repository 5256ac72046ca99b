"""Paths of the golden files: outputs of Megatron-LM and Modalities that dsindex must reproduce byte for byte.

For Megatron-LM, `GOLDEN_SETS` contains the project's own set (tests/golden/) and, if there is a folder `shared` next to
the checkout, a second, larger set. Tests parametrize over `golden_runs()`, `GOLDEN_SETS`, `golden_caches()` or
`DATASETS`. For Modalities there is one set, `MODALITIES`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
SHARED = ROOT.parent / "shared"
"""Larger golden files and corpora; not in a plain clone."""
SHARED_GOLDEN = SHARED / "golden" / "megatron"
MODALITIES = GOLDEN / "modalities"
"""Folder with nonempty.jsonl, and with the files that Modalities writes for it with the tokenizer in gpt2/."""
TOKENIZERS = {"gpt2": MODALITIES / "gpt2", **{name: GOLDEN / "tokenizers" / name for name in ("plain", "bos")}}
TOKENIZERS |= {path.name: path for path in (SHARED / "corpus").glob("bos8k")}
"""Folders of tokenizers that were trained on real text; if `shared` exists, also a larger one with a BOS."""
DATASETS = [idx.with_suffix("") for folder in (GOLDEN, SHARED_GOLDEN) for idx in sorted(folder.glob("*.idx"))]
"""Prefixes of datasets that Megatron-LM wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenRun:
    """One run of preprocess_data.py and the pairs that it wrote, `<folder>/<name>_<key>_document.{bin,idx}`."""

    name: str
    folder: Path
    input: Path
    tokenizer: Path
    """A folder with tokenizer.json and tokenizer_config.json."""
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = True
    add_special_tokens: bool = True
    """Whether the tokenizer's post-processor ran: False for `--tokenizer-hf-no-include-special-tokens`."""

    @property
    def prefixes(self):
        """JSON key → prefix of its expected pair."""
        return {key: self.folder / f"{self.name}_{key}_document" for key in self.json_keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSet:
    """One folder of golden files."""

    name: str
    docs: Path
    sentences: Path
    plain_tokenizer: Path
    bos_tokenizer: Path
    runs: tuple[GoldenRun, ...]
    merged: Path
    """Prefix of the dataset that merge_datasets.py wrote."""
    merge_inputs: tuple[Path, ...]
    """Prefixes of the merged datasets, in order."""

    def run(self, name):
        return next(run for run in self.runs if run.name == name)


def _golden_set(name, *, texts, outputs, plain, bos):
    """Return the golden set in two folders, with a tokenizer that adds no tokens and one that adds a BOS."""
    docs, sentences = texts / "docs.jsonl", texts / "sentences.jsonl"
    runs = [
        GoldenRun(name="eod", folder=outputs, input=docs, tokenizer=plain),
        GoldenRun(name="noeod", folder=outputs, input=docs, tokenizer=plain, append_eod=False),
        GoldenRun(name="keys", folder=outputs, input=docs, tokenizer=plain, json_keys=("text", "title")),
        GoldenRun(name="sentences", folder=outputs, input=sentences, tokenizer=plain),
        GoldenRun(name="bos", folder=outputs, input=docs, tokenizer=bos),
        GoldenRun(name="nobos", folder=outputs, input=docs, tokenizer=bos, add_special_tokens=False),
    ]
    if name == "own":
        runs.append(GoldenRun(name="bossentences", folder=outputs, input=sentences, tokenizer=bos))
    merged = ("eod_text_document", "keys_title_document", "sentences_text_document")
    sources = {"docs": docs, "sentences": sentences, "plain_tokenizer": plain, "bos_tokenizer": bos}
    merge_inputs = tuple(outputs / prefix for prefix in merged)
    return GoldenSet(name=name, **sources, runs=tuple(runs), merged=outputs / "merged", merge_inputs=merge_inputs)


_OWN, _CORPUS = GOLDEN / "tokenizers", SHARED / "corpus"
OWN = _golden_set("own", texts=GOLDEN, outputs=GOLDEN, plain=_OWN / "plain", bos=_OWN / "bos")
GOLDEN_SETS = [OWN]
if SHARED_GOLDEN.is_dir():
    _PLACES = {"texts": SHARED / "golden", "outputs": SHARED_GOLDEN}
    GOLDEN_SETS.append(_golden_set("shared", **_PLACES, plain=_CORPUS / "gpt2", bos=_CORPUS / "bos8k"))
LINES = OWN.docs.read_bytes().splitlines(keepends=True)
"""Lines of the project's own docs.jsonl."""
FAST = GoldenRun(name="fast", folder=GOLDEN, input=GOLDEN / "fast.jsonl", tokenizer=OWN.plain_tokenizer)
"""The run of preprocess_data_fast.py, which writes a text without tokens as a document with only EOD."""


def golden_runs():
    """Return test id → run for all runs of all sets; the ids are `own-eod`, …, `shared-nobos`."""
    return {f"{golden.name}-{run.name}": run for golden in GOLDEN_SETS for run in golden.runs}


def dataset_name(prefix):
    return f"{'own' if prefix.is_relative_to(GOLDEN) else 'shared'}-{prefix.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """A GPTDataset or BlendedDataset of each split that megatron-core built, and wrote into one cache folder."""

    folder: Path
    """Folder with the datasets, which prefixes and the `dataset_path` of descriptions are relative to."""
    case: dict[str, Any]
    """The entry in gpt_index_cases.json: the arguments, and what came out."""

    @property
    def cache(self):
        return self.folder / "cache" / self.case["name"]

    def prefixes(self):
        return [str(self.folder / prefix) for prefix in self.case["prefixes"]]


def golden_cases():
    """Return test id → case for all cases of all sets, such as `own-one_epoch`."""
    cases = {}
    for owner, folder in (("own", GOLDEN), ("shared", SHARED_GOLDEN)):
        path = folder / "gpt_index_cases.json"
        for case in json.loads(path.read_bytes()) if path.exists() else []:
            cases[f"{owner}-{case['name']}"] = GoldenCase(folder=folder, case=case)
    return cases


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCache(GoldenCase):
    """The cache of one split of a case."""

    description_path: Path
    name: str

    @property
    def split(self):
        return self.description_path.name.split("-")[2]

    @property
    def add_extra_token(self):
        return bool(self.case.get("add_extra_token", True))

    @property
    def num_samples(self):
        return int(self.case["lengths"][["train", "valid", "test"].index(self.split)])

    def __str__(self):
        return f"{self.name}-{self.split}"


def golden_caches(class_name):
    """Return the caches of single datasets (GPTDataset) or of blends (BlendedDataset)."""
    return [
        GoldenCache(folder=golden.folder, case=golden.case, description_path=golden.cache / file, name=name)
        for name, golden in golden_cases().items()
        if any("BlendedDataset" in file for file in golden.case["files"]) == (class_name == "BlendedDataset")
        for file in golden.case["files"]
        if file.endswith("description.txt") and class_name in file
    ]
