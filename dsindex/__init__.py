"""dsindex: JSONL to merged, indexed training data. The library: no Ray, no command line."""

__version__ = "0.1.0"
