"""Run records become tables and figures."""
