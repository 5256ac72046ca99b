"""Progress of a job: snapshots, displays, the progress file and metrics."""
