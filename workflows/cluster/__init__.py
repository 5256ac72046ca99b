"""Jobs on a Ray cluster: submission and the job server."""
