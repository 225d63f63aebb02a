"""One file for each method, which reads like its paper's algorithm; how the server's model moves is in `heads.py`."""
