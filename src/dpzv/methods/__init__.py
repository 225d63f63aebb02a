"""One file a method, each reading like its paper's algorithm; how the server's model moves is in `heads.py`."""
