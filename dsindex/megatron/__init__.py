"""Plan and build Megatron's index caches: splits, epochs, document, sample and shuffle indices, and blends."""
