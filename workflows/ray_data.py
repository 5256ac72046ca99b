"""Ray Data → dataset: rows are filtered by Ray Data, written as Parquet in their order, and built.

    python workflows/ray_data.py workflows/ray_data.yaml
    ray job submit --working-dir . -- python workflows/ray_data.py workflows/ray_data.yaml

Needs `pip install 'dsindex[ray-data]'`. `folder` is new, on storage that all nodes share.
"""

import os
import sys

import ray
import yaml

import dsindex


def main(path: str) -> int:
    """Run the steps with the options of a YAML file; return 1 if the dataset is damaged."""
    with open(path, encoding="utf-8") as file:
        options = yaml.safe_load(file)
    folder = os.path.abspath(options["folder"])
    ray.init(address=os.environ.get("RAY_ADDRESS", "local"))
    if not os.path.exists(folder):
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        rows = ray.data.read_json(options["input"]).filter(lambda row: len(row["text"]) >= options["shortest_text"])
        rows.write_parquet(f"{folder}.writing")
        os.rename(f"{folder}.writing", folder)
    built = dsindex.build(folder, **options["build"], progress=True)
    print(built, flush=True)
    checked = dsindex.verify(built)
    print(checked, flush=True)
    return 0 if checked else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
