"""A Hugging Face cache of tokenizers, in the layout of `huggingface_hub`."""

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


def put_in_cache(home, name, files, *, commit=COMMIT, reference="main"):
    """Store the files of one commit, and let the branch or tag `reference` point to it."""
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
