"""A Hugging Face cache with tokenizers in it, as `huggingface_hub` lays it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


def put_in_cache(
    home: Path, name: str, files: Mapping[str, bytes], *, commit: str = COMMIT, reference: str = "main"
) -> None:
    """Store the files of one commit, to which a branch or tag refers."""
    root = home / "hub" / f"models--{name.replace('/', '--')}"
    folder = root / "snapshots" / commit
    folder.mkdir(parents=True)
    (root / "blobs").mkdir(exist_ok=True)
    for number, (file, content) in enumerate(files.items()):
        blob = root / "blobs" / f"{commit}{number}"
        blob.write_bytes(content)
        (folder / file).symlink_to(blob)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / reference).write_text(commit)
