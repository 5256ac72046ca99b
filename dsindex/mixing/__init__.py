"""Mixtures of datasets: from shares, tokens and epochs to Megatron's weights, and what caches draw of each dataset."""
