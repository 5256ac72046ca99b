"""Merge many datasets into one: the `.bin` in parallel by ranges of the output, the `.idx` as a stream."""
