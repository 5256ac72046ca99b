"""Where calls run and how they are dispatched, retried and stopped."""
