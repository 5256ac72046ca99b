"""The demo: generated text in many scripts, a tokenizer trained on it, and the main job on both."""
