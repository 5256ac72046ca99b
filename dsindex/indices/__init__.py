"""Index arithmetic: splits, epochs, document, sample and shuffle indices, blends. Pure: arrays in, arrays out."""
