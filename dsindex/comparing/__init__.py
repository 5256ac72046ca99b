"""Compare datasets and index caches of any tools: whether they are the same, where they differ, and by which rule."""
