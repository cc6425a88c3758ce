"""bruce_mp: the daemon that every host with something to say to Kafka should run."""

from typing import Final

__version__: Final = "0.1.0"
