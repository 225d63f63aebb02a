"""Data sets, their vertical splits, public encodings and batch schedules."""
