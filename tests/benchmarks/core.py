"""What is measured beside megatron-core in one process, for an environment that has it: prints rows as JSON.

python -m tests.benchmarks.core indices|reading [--full] [--scale F]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from tests.benchmarks.rows import Row

PEER = "megatron-core"


def index_rows(*, full: bool, scale: float) -> list[Row]:
    """Return document, sample and shuffle index, their memory, and a blend."""
    from tests.benchmarks.indices import measure_blend, measure_indices, measure_memory

    rounds = 5 if full else 2
    documents = max(1000, int((10_000_000 if full else 2_000_000) * scale))
    samples = max(1000, int(10_000_000 * scale))
    built = measure_indices(rounds=rounds, documents=documents)
    blended = measure_blend(rounds=rounds, size=samples)
    memory = measure_memory(documents=documents)
    what = f"document + sample + shuffle index, {documents:,} documents × 3 epochs"
    return [
        _index_row(what, built),
        _index_row(f"blend of 10 datasets, {samples:,} samples", blended),
        Row(
            group="indices",
            name="peak memory of the first",
            against=PEER,
            unit="MiB",
            ours=(memory["dsindex_bytes"] / (1 << 20),),
            peer=(memory["megatron_bytes"] / (1 << 20),),
            ratios=(memory["megatron_bytes"] / max(1, memory["dsindex_bytes"]),),
        ),
    ]


def _index_row(name: str, found: dict[str, Any]) -> Row:
    return Row(
        group="indices",
        name=name,
        against=PEER,
        ours=(found["dsindex_seconds"],),
        peer=(found["megatron_seconds"],),
        ratios=(found["ratio"],),
        target=found["target"],
        note="same arrays",
    )


def reading_rows(*, full: bool, scale: float) -> list[Row]:
    """Return sequences and samples per second, and a DataLoader."""
    from tests.benchmarks.reading import measure_gpt, measure_indexed, measure_loader

    times, rounds = (5 * scale, 9) if full else (0.5 * scale, 3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            **measure_indexed(folder, rounds=rounds, num_sequences=max(2_000, int(times * 1_000_000))),
            **measure_gpt(folder, rounds=rounds, num_sequences=max(10_000, int(times * 100_000))),
            **measure_loader(folder, rounds=rounds, num_sequences=max(10_000, int(times * 20_000))),
        }
    return [
        Row(
            group="reading",
            name=name,
            against=PEER,
            unit=figures["unit"],
            ours=(figures["ours"],),
            peer=(figures["peer"],),
            ratios=(figures["ratio_min"], figures["ratio_median"], figures["ratio_median"]),
            target=figures["target"],
        )
        for name, figures in found.items()
    ]


def main() -> None:
    """Measure one group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=["indices", "reading"])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = (index_rows if options.group == "indices" else reading_rows)(full=options.full, scale=options.scale)
    sys.stdout.write("\n" + json.dumps([row.to_json() for row in rows]) + "\n")


if __name__ == "__main__":
    main()
