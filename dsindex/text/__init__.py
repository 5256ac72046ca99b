"""Turn bytes into records, and records into batches of tokens."""
