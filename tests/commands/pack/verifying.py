"""What `verify` says of datasets and packed files."""

from dsindex.commands.verify import verify_dataset
from dsindex.options.datasets import VerifyConfig
from dsindex.runtime.progress import Reporter
from tests.support.golden import OWN

TOKENIZER = str(OWN.plain_tokenizer)


def verify(path, **options):
    defaults = {"executor": "local", "workers": 2, "tokenizer_model": TOKENIZER}
    return verify_dataset(path, VerifyConfig(path, **{**defaults, **options}), reporter=Reporter())


def all_findings(report):
    return "\n".join(report.findings)
