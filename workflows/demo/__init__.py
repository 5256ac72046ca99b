"""The demo: text made on the spot in many scripts, a tokenizer trained on it, and the whole job on top."""
