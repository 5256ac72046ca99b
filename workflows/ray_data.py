"""Ray Data → dataset: rows are filtered and deduplicated by Ray Data, and tokenized where they are.

Of equal texts one row stays. The rows are in the order of their digests, so it depends on the texts alone, not on
blocks and nodes. A run that was killed is repeated: what was tokenized is kept.

    python workflows/ray_data.py workflows/ray_data.yaml
    ray job submit --working-dir . -- python workflows/ray_data.py workflows/ray_data.yaml

Needs `pip install 'dsindex[ray-data]'`. The output is on storage that all nodes share, or in a bucket.
"""

import hashlib
import os
import sys

import numpy as np
import ray
import yaml

import dsindex


def add_digests(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add the digest of each text."""
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() for text in batch["text"]]
    return {"digest": np.array(digests), "text": batch["text"]}


def keep_first(group: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the first of the rows with the same text."""
    return {name: column[:1] for name, column in group.items()}


def main(path: str) -> int:
    """Run the steps with the options of a YAML file; return 1 if the dataset is damaged."""
    with open(path, encoding="utf-8") as file:
        options = yaml.safe_load(file)
    ray.init(address=os.environ.get("RAY_ADDRESS", "local"))
    rows = ray.data.read_json(options["input"]).filter(lambda row: len(row["text"]) >= options["shortest_text"])
    texts = rows.map_batches(add_digests).groupby("digest").map_groups(keep_first).sort("digest")
    built = dsindex.build(texts, **options["build"], progress=True)
    print(built, flush=True)
    checked = dsindex.verify(built)
    print(checked, flush=True)
    return 0 if checked else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
