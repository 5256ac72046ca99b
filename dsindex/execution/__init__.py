"""Running tasks: threads, processes or Ray (the only place that imports ray), with retries and deadlines."""
