"""Clients that mean harm. They speak raw TCP, TLS and HTTP/2, and use nothing of the package.

Each runs as a process, such as ``python -m tests.network.hostile.silent PORT --seconds 30``.
"""
