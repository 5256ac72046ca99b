"""Write tokenizer_identifiers.json: the identifiers of tokenizers, made by the releases of Megatron-LM themselves.

`python make_tokenizer_identifiers.py 0.16=CHECKOUT 0.17=CHECKOUT …`; README.md has the environment. No tokenizer is
loaded: what the identifiers do not depend on is replaced.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path

OUTPUT = Path(__file__).with_name("tokenizer_identifiers.json")
"""Releases, flags and what the release made of them: a new case is a row with the release and the flags alone."""


def identify(release):
    """Return the identifiers of a release, whose checkout comes first in the path of modules."""
    logging.disable(logging.CRITICAL)
    from megatron.core.tokenizers.text.text_tokenizer import MegatronTokenizerText
    from megatron.training.arguments import parse_args

    MegatronTokenizerText._restore_model = lambda _self, **_options: type("Library", (), {"vocab_size": 100})()
    if release == "0.16":
        from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer
    else:
        from megatron.core.tokenizers.utils.build_tokenizer import build_tokenizer
    rows = []
    for flags in [row["flags"] for row in json.loads(OUTPUT.read_bytes()) if row["release"] == release]:
        sys.argv = ["pretrain_gpt.py", *flags]
        args = parse_args()
        args.rank, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size = 1, 128, 1
        identifiers = build_tokenizer(args).unique_identifiers
        rows.append({"release": release, "flags": flags, "identifiers": identifiers})
    return rows


def main():
    """Ask each release in a process of its own, and write what they say."""
    if sys.argv[1] == "--identify":
        rows = identify(sys.argv[2])
        sys.__stdout__.write("".join(f"\nROW {json.dumps(row, ensure_ascii=False)}" for row in rows))
        return
    rows = []
    for pair in sys.argv[1:]:
        release, _, checkout = pair.partition("=")
        command = [sys.executable, "-W", "ignore", __file__, "--identify", release]
        shown = subprocess.run(command, env={"PYTHONPATH": checkout}, capture_output=True, text=True, check=True).stdout
        rows += [line.removeprefix("ROW ") for line in shown.splitlines() if line.startswith("ROW ")]
    OUTPUT.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
