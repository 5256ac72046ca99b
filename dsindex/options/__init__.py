"""The typed options of every job, and the parser that reads them."""
