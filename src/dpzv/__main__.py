"""``python -m dpzv`` is the same as ``dpzv``."""

from __future__ import annotations

from dpzv.cli import main

if __name__ == "__main__":
    main()
