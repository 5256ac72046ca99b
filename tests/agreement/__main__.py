"""The command: see the package."""

import argparse
import importlib.metadata
import sys
import time

import tests.agreement
from tests.agreement.added import compare_added_tokens
from tests.agreement.sweep import PARTS, compare_sequences, expected_points, sampled_points, sweep_code_points


def main(arguments):
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.agreement", None, tests.agreement.__doc__, formatter_class=raw)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="parts of tokenizers (default: all)")
    parser.add_argument("--every", type=int, default=1, help="try every n-th code point (default: 1)")
    parser.add_argument("--length", type=int, default=4, help="try all sequences of so many characters (default: 4)")
    parser.add_argument("--seconds", type=float, default=60, help="spent on long texts in a part (default: 60)")
    parser.add_argument("--added", type=int, default=500, help="tokenizers with random added tokens (default: 500)")
    options = parser.parse_args(arguments)
    versions = " with ".join(f"{name} {importlib.metadata.version(name)}" for name in ("gigatoken", "tokenizers"))
    sys.stdout.write(f"{versions}\n")
    agrees = [report_part(part, options) for part in options.parts]
    texts = compare_added_tokens(seed=1, count=options.added)
    sys.stdout.write(f"added tokens of {options.added:,} tokenizers: {len(texts):,} texts differ\n")
    for text in sorted(texts, key=len)[:3]:
        sys.stdout.write(f"    differs: {text!r}\n")
    return 0 if all(agrees) and not texts else 1


def report_part(part, options):
    """Compare the engines on one part, print what was found, and return whether it is as the table says."""
    begin = time.monotonic()
    points = sampled_points(part, options.every)
    apart = sorted(sweep_code_points(part, points))
    texts = compare_sequences(part, length=options.length, seconds=options.seconds)
    starts = [point for point in apart if point - 1 not in apart]
    ends = [point for point in apart if point + 1 not in apart]
    ranges = " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in zip(starts, ends, strict=True))
    is_table = apart == expected_points(part, points)
    sys.stdout.write(
        f"{part}: {len(apart):,} of {len(points):,} code points differ, {'as' if is_table else 'NOT AS'} in the table; "
        f"{len(texts):,} other texts ({time.monotonic() - begin:.0f} s)\n"
    )
    if apart:
        sys.stdout.write(f"    {ranges}\n")
    for text in sorted(texts, key=len)[:3]:
        sys.stdout.write(f"    differs: {text!r}\n")
    sys.stdout.flush()
    return is_table and not texts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
