"""Read and change the files that a job has published."""

import json
from pathlib import Path


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


def move_tokenizer_away(prefix):
    """Change a dataset's manifest so that its tokenizer is neither at the recorded path nor near the first input."""
    path = Path(f"{prefix}.manifest.json")
    manifest = json.loads(path.read_bytes())
    manifest["run"]["tokenizer_path"] = "/nowhere/tokenizer"
    manifest["run"]["plan"]["inputs"][0][0] = "/nowhere/input"
    path.write_text(json.dumps(manifest))
