"""The stages of jobs: sources, checks, tokenizing, early merging, assembling."""
