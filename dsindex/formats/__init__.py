"""Convert between bytes and arrays; one module per file format."""

PICKLE_START = b"\x80"
"""First byte of a pickle: the index of a raw index, or of a `.pbin`."""
