"""What jobs are made of: sources, checks, tokenizing, early merging, assembling."""
