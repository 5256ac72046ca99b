"""How a job shows what it does: snapshots, displays, the progress file and metrics."""
