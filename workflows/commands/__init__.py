"""One file per command: its flags, and what it writes to the terminal. The jobs themselves lie beside this folder."""
