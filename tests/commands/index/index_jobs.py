"""Index jobs of the tests, with the usual options."""

import contextlib
import json

from dsindex.commands.index import run_index
from dsindex.options.index import IndexConfig
from dsindex.runtime.dispatch import make_executor


def index(**options):
    config = IndexConfig(**{"executor": "local", "workers": 2, **options})
    with contextlib.closing(make_executor(config)) as executor:
        return run_index(config, executor=executor)


IDENTIFIERS = {"class": "tests.Tokenizer", "tokenizer_path": ["gpt2"]}


def options(**changes):
    """Options of a small job; a change to None leaves an option out."""
    chosen = {"data_path": ["web"], "seq_length": 30, "epochs": "2.5", "data_cache_path": "cache"}
    chosen |= {"tokenizer_identifiers": "identifiers.json", **changes}
    return {name: value for name, value in chosen.items() if value is not None}


def read_descriptions(folder):
    return [json.loads(path.read_bytes()) for path in sorted(folder.glob("*description.txt"))]


def indexed(**changes):
    """Run a small job with these changes."""
    return index(**options(**changes))
