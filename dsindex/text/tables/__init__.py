"""Read tables (Parquet, Arrow IPC, CSV and TSV) as the same blocks of records and lines that JSONL becomes."""
