"""bruce_mp: a daemon that delivers messages from programs of its host to Kafka."""

from typing import Final

__version__: Final = "1.0.0"
