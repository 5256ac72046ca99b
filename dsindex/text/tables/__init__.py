"""Read tables (Parquet, Arrow IPC) as the same blocks of records and lines that JSONL becomes."""
