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
CASES = """
--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Llama-3.1-8B
--tokenizer-type HuggingFaceTokenizer --tokenizer-model /lustre/größer --trust-remote-code --tokenizer-special-tokens <a> it's
--tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt
--tokenizer-type BertWordPieceLowerCase --vocab-file vocab.txt
--tokenizer-type BertWordPieceCase --vocab-file vocab.txt
--tokenizer-type SentencePieceTokenizer --tokenizer-model x.model
--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model x.model --tokenizer-sentencepiece-legacy
--tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model
--tokenizer-type TikTokenizer --tokenizer-model ranks.json --tiktoken-pattern v2
--tokenizer-type TikTokenizer --tokenizer-model ranks.json --tiktoken-pattern v1 --vocab-size 131072 --tokenizer-special-tokens <unk> <s>
--tokenizer-type NullTokenizer --vocab-size 131072
"""  # noqa: E501 - a command on each line
SFT = "--tokenizer-type SFTTokenizer --tokenizer-model x"
SINCE_18 = """
--tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 --chat-template {{x}} --tokenizer-hf-no-use-fast
--tokenizer-type NullTokenizer --vocab-size 9 --null-tokenizer-eod-id 3
"""
ONLY_16 = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 --tokenizer-hf-use-fast"
ONLY_MAIN = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 --use-gigatoken"


def cases_of(release):
    """Return the flags of each tokenizer that a release is asked for."""
    cases = [line.split() for line in CASES.strip().splitlines()]
    if release == "0.16":
        return [*cases, ONLY_16.split()]
    cases.append(SFT.split())
    if release not in {"0.16", "0.17"}:
        cases += [line.split() for line in SINCE_18.strip().splitlines()]
    return [*cases, ONLY_MAIN.split()] if release == "main" else cases


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
    found = []
    for flags in cases_of(release):
        sys.argv = ["pretrain_gpt.py", *flags]
        args = parse_args()
        args.rank, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size = 1, 128, 1
        identifiers = build_tokenizer(args).unique_identifiers
        found.append({"release": release, "flags": flags, "identifiers": identifiers})
    return found


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
