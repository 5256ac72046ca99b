"""Datasets → mixture → index caches: blend datasets by the number of tokens that they really have.

    python workflows/mixture.py workflows/mixture.yaml
    ray job submit --working-dir . -- python workflows/mixture.py workflows/mixture.yaml

Datasets that are already complete are not built again.
"""

import sys

import yaml

import dsindex


def main(path: str) -> int:
    """Run the steps with the options of a YAML file; return 1 if a dataset or a cache is damaged."""
    with open(path, encoding="utf-8") as file:
        options = yaml.safe_load(file)
    amounts = {}
    for name, dataset in options["datasets"].items():
        amount = dataset.pop("amount", None)
        prefix = f"{options['folder']}/{name}"
        built = dsindex.build(**options["build"], **dataset, output_prefix=prefix, progress=True)
        dsindex.show(built)
        amounts[built.prefixes[0]] = amount
    mixed = dsindex.mix(amounts, **options["mix"], **options["job"])
    dsindex.show(mixed)
    lengths = {"train_samples": mixed.num_samples, **options["index"], **options["job"]}
    caches = dsindex.build_index(mixed.data_path, **lengths, progress=True)
    dsindex.show(caches)
    checked = dsindex.verify(list(amounts), cache=caches)
    dsindex.show(checked)
    return 0 if checked else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
