"""Conversations → tokens and loss masks → packs and exports for other trainers.

    python workflows/instruction.py workflows/instruction.yaml
    ray job submit --working-dir . -- python workflows/instruction.py workflows/instruction.yaml

To continue an interrupted run, repeat the command.
"""

import sys

import yaml

import dsindex


def main(path: str) -> int:
    """Run the steps with the options of a YAML file; return 1 if a dataset is damaged."""
    with open(path, encoding="utf-8") as file:
        options = yaml.safe_load(file)
    built = dsindex.instruct(config=options["config"], **options["instruct"], progress=True)
    dsindex.show(built)
    blocks = dsindex.open(built)
    mask = blocks[0].loss_mask
    print(f"{len(blocks):,} blocks; {int(mask.sum())} of {len(mask)} tokens of the first are trained on")
    checked = dsindex.verify(built)
    dsindex.show(checked)
    return 0 if checked else 1


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
