"""Look into datasets: tell their kinds, summarize lengths, find token ids, and show where tokens begin."""
