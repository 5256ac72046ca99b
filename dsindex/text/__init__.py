"""From bytes to records to token batches."""
