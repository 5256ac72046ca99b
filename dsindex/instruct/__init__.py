"""Conversations to tokens and loss masks: message construction, chat templates, packing. Pure but for its shards."""
