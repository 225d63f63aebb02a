"""Device networks and their starts, the server's head, and losses per record."""
