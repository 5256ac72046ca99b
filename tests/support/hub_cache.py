"""A Hugging Face cache with tokenizers in it, as `huggingface_hub` lays it out."""

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"


def put_in_cache(home, name, files, *, commit=COMMIT, reference="main"):
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
