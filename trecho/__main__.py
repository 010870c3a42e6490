"""`python -m trecho` is the same as `trecho`."""

import sys

from trecho.cli import main

if __name__ == "__main__":
    sys.exit(main())
