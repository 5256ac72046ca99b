"""One file per command: its flags and its terminal output. The jobs themselves are in `workflows/jobs`."""
