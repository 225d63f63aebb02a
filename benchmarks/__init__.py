"""Benchmarks: ratios within one run, against a bar. `make bench` prints them as one table."""
