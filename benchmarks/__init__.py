"""Benchmarks, most of them ratios within one run, each with a bar to hold. `make bench` prints them as one table."""
