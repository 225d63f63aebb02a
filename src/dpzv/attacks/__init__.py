"""Attacks on a run's own server and gate, to see whether its claim holds: strategies, and the bound they give."""
