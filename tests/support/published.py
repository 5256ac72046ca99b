"""What a job has published."""

import json
from pathlib import Path


def published(folder):
    """Return every file of a folder that does not tell of the run; of manifests, the part under the one law."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.name.endswith("manifest.json"):
            files[path.name] = json.dumps(json.loads(path.read_bytes())["content"]).encode()
        elif path.is_file() and not path.name.endswith(".progress.json"):  # has times of the run
            files[path.name] = path.read_bytes()
    return files


def move_tokenizer_away(prefix):
    """Change a dataset's manifest as if its tokenizer were no longer where it was, nor near the first input."""
    path = Path(f"{prefix}.manifest.json")
    manifest = json.loads(path.read_bytes())
    manifest["run"]["tokenizer_path"] = "/nowhere/tokenizer"
    manifest["run"]["plan"]["inputs"][0][0] = "/nowhere/input"
    path.write_text(json.dumps(manifest))
