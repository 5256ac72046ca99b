"""What a report says of a dataset's tokens, measured in one pass."""
