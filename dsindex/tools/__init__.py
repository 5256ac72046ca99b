"""Jobs that read datasets: verify, compare, inspect, trace, mix, report."""
