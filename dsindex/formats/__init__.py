"""Convert between bytes and arrays; one module per file format."""
