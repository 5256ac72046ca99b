"""Run programs from users, such as templates and jq patterns, in processes that can be killed at any point."""
