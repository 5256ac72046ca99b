"""Text → dataset → index caches → verified: the main job, to copy and change.

    python workflows/pretraining.py workflows/pretraining.yaml
    ray job submit --working-dir . -- python workflows/pretraining.py workflows/pretraining.yaml

A submitted job uses the cluster that it runs on, other runs the threads of this machine. Start an interrupted run again
to continue it.
"""

import sys

import yaml

import dsindex


def main(path: str) -> int:
    """Run the steps with the options of a YAML file; return 1 if a check fails."""
    with open(path, encoding="utf-8") as file:
        options = yaml.safe_load(file)
    built = dsindex.build(**options["build"], progress=True)
    print(built, flush=True)
    caches = dsindex.build_index(built, **options["index"], progress=True)
    print(caches, flush=True)
    checked = dsindex.verify(built, cache=caches)
    print(checked, flush=True)
    return 0 if checked else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
