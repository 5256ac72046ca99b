"""What users give us to run, templates and jq programs, runs in processes that can be ended at any point."""
