"""Ray Data → dataset: rows are filtered and deduplicated by Ray Data, written as Parquet, and built.

Of equal texts one row stays. The rows are in the order of their digests, so it depends on the texts alone, not on
blocks and nodes.

    python workflows/ray_data.py workflows/ray_data.yaml
    ray job submit --working-dir . -- python workflows/ray_data.py workflows/ray_data.yaml

Needs `pip install 'dsindex[ray-data]'`. `folder` is new, on storage that all nodes share.
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
    folder = os.path.abspath(options["folder"])
    ray.init(address=os.environ.get("RAY_ADDRESS", "local"))
    if not os.path.exists(folder):
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        rows = ray.data.read_json(options["input"]).filter(lambda row: len(row["text"]) >= options["shortest_text"])
        texts = rows.map_batches(add_digests).groupby("digest").map_groups(keep_first).sort("digest")
        texts.write_parquet(f"{folder}.writing")
        os.rename(f"{folder}.writing", folder)
    built = dsindex.build(folder, **options["build"], progress=True)
    print(built, flush=True)
    checked = dsindex.verify(built)
    print(checked, flush=True)
    return 0 if checked else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
