"""Write dsindex/megatron/job_flags.txt: `python job_flags.py FOLDER`, with the releases as in test_releases.py.

Without a folder, this prints the flags of the release in PYTHONPATH.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

RELEASES = ("0.16", "0.17", "0.18", "0.19", "main")


def list_flags():
    from megatron.post_training.arguments import add_modelopt_args
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    add_modelopt_args(parser)
    return sorted(flag for flag in parser._option_string_actions if flag.startswith("--"))


def tabulate(folder):
    """Return the lines of the file."""
    releases = {}
    for release in RELEASES:
        environment = {**os.environ, "PYTHONPATH": str(Path(folder) / release), "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([sys.executable, __file__], env=environment, check=True, capture_output=True, text=True)
        for flag in done.stdout.split():
            releases.setdefault(flag, []).append(release)
    flags = {}
    for flag, names in sorted(releases.items()):
        flags.setdefault(" ".join(names), []).append(flag)
    return "".join(f"{names}\n{' '.join(group)}\n" for names, group in sorted(flags.items()))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.stdout.write("\n".join(list_flags()))
    else:
        target = Path(__file__).parents[2] / "dsindex" / "megatron" / "job_flags.txt"
        target.write_text(tabulate(sys.argv[1]))
