"""Read and change the files that a job has published."""

import json
from pathlib import Path

import pyarrow as pa

from dsindex.formats.manifest import manifest_path


def published(folder):
    """Return file name → bytes for a folder, without the parts that may differ between runs of the same job.

    Of a manifest it returns only `content`; the progress file, which has times, is left out.
    """
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name.endswith("manifest.json"):
            files[path.name] = json.dumps(json.loads(path.read_bytes())["content"]).encode()
        elif path.is_file() and not path.name.endswith(".progress.json"):  # has the run's times
            files[path.name] = path.read_bytes()
    return files


def read_pair(prefix):
    """Return the bytes of a `.bin` and of its `.idx`."""
    return tuple(Path(f"{prefix}.{suffix}").read_bytes() for suffix in ("bin", "idx"))


def read_quarantine(prefix):
    """Return what a dataset's quarantine has of each bad record."""
    with open(f"{prefix}.quarantine.jsonl.zst", "rb") as file, pa.input_stream(file, compression="zstd") as stream:
        return [json.loads(line) for line in stream.read().splitlines()]


def edit_manifest(prefix, edit):
    """Let a function change the manifest of a dataset, and write the manifest back."""
    path = Path(manifest_path(str(prefix).removesuffix(".pbin")))
    manifest = json.loads(path.read_bytes())
    edit(manifest)
    path.write_text(json.dumps(manifest))


def move_tokenizer_away(prefix):
    """Change a dataset's manifest so that its tokenizer is neither at the recorded path nor near the first input."""

    def move(manifest):
        manifest["run"]["tokenizer_path"] = "/nowhere/tokenizer"
        manifest["run"]["plan"]["inputs"][0][0] = "/nowhere/input"

    edit_manifest(prefix, move)
