"""`python -m bruce_mp.devbroker`: run the embedded broker as a separate process."""

from __future__ import annotations

import sys

from bruce_mp.devbroker.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
