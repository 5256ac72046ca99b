"""Executors of calls; dispatching, retrying and stopping them."""
