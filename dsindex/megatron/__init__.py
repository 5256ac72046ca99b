"""Build indices: splits, epochs, document, sample and shuffle index, blends, and the caches that hold them."""
