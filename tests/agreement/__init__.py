"""Where gigatoken and `tokenizers` differ: both encode every code point in every context that pre-tokenizers know.

    python -m tests.agreement                    all parts of tokenizers, every code point: an hour or two on two cores
    python -m tests.agreement --every 50         a sample: a few minutes
    python -m tests.agreement --parts gpt2 nfc   some parts

It prints the code points of each part on which the two differ, as they stand in `dsindex/text/engines.py`, and exits
with 1 where they are not those, or where texts without them differ. Another release is tried by putting it first on
PYTHONPATH: `pip install --no-deps --target /tmp/other tokenizers==0.22.0`.
"""
