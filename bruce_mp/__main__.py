"""`python -m bruce_mp` is `bruce`."""

import sys

from bruce_mp.cli import main

if __name__ == "__main__":
    sys.exit(main())
