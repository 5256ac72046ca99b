"""The jobs: thin, and the only place that knows Ray."""
