"""``python -m platform.train``."""

from __future__ import annotations

import sys


def main() -> int:
    """Show the usage."""
    sys.stdout.write("usage: python -m platform.train {real,imagined,real+imagined} [key=value ...]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
