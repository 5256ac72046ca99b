"""Tokenizers in other formats than tokenizer.json: SentencePiece models, tiktoken's ranks, GPT-2's two files.

Each format is read without executing anything. What gigatoken can encode is also converted to a tokenizer.json; the
format's own library stays the reference, with which the conversion is compared (see `dsindex.text.engines`).
"""
