"""Look at an export of instruction data: what it is for, what is in it, and what it was made of."""

from __future__ import annotations

import os
from typing import Any

from dsindex.amounts import count
from dsindex.exports.reading import export_folder_of, read_facts
from dsindex.inspection.stores import size_of
from workflows.state.export_manifest import ExportedSplit, read_export_manifest

READERS = {
    "hf": "Parquet with labels: TRL, transformers, axolotl",
    "hf-disk": "a saved dataset with labels: LLaMA-Factory, transformers",
    "bridge": "packed sequences: Megatron-Bridge, NeMo",
    "sft": "messages: Megatron-LM's --sft",
}


def look_at_export(facts: dict[str, Any], findings: list[str], path: str) -> None:
    """Describe the folder of an export, or one file of it.

    Raises:
        FormatError: If its manifest, or the Parquet file, cannot be read.
    """
    if os.path.isfile(path) and path.endswith(".parquet"):
        own = read_facts(path)
        facts["export"] = describe_kind(own.get("export", ""))
        facts["files"] = size_of([path])
        facts |= {name: int(value) for name, value in own.items() if name != "export" and value.isdecimal()}
        return
    folder = export_folder_of(path) or path
    manifest = read_export_manifest(folder)
    if manifest is None:
        return
    content = manifest.content
    facts["export"] = describe_kind(content.kind)
    names = [os.path.join(folder, name) for name in content.digests]
    facts["files"] = size_of([name for name in names if os.path.isfile(name)])
    for name, split in content.splits.items():
        facts[name] = describe_split(split)
    facts["made of"] = list(content.sources)
    if content.tokenizer is not None:
        facts["tokenizer"] = str(content.tokenizer.get("name"))
    for name, file in content.digests.items():
        full = os.path.join(folder, name)
        found = os.path.getsize(full) if os.path.isfile(full) else None
        if found != file.size_bytes:
            got = "no such file" if found is None else f"{found} bytes"
            findings.append(f"{full}: expected {file.size_bytes} bytes as in the manifest, got {got}; export it again")


def describe_kind(kind: str) -> str:
    """Return a kind of export with its readers."""
    return f"{kind}, {READERS[kind]}" if kind in READERS else kind


def describe_split(split: ExportedSplit) -> str:
    """Return the rows of a split and what is learnt of them."""
    if split.targets is None:
        return count(split.rows, "row") + (f", {split.left_out:,} left out" if split.left_out else "")
    return (
        f"{count(split.rows, 'row')}, {count(split.tokens or 0, 'token')}, {split.trainable or 0:,} trainable, "
        f"{count(split.targets, 'target')}"
    )
