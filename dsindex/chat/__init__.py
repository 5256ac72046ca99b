"""Turn conversations into tokens and loss masks: message construction, chat templates, packing and shards."""
