"""A single status process, started as the supervisor starts it."""

from __future__ import annotations

import multiprocessing
from socket import AF_UNIX
from typing import TYPE_CHECKING, Self

from bruce_mp.config.model import Config
from bruce_mp.config.sections import Http, Kafka
from bruce_mp.ipc.control_messages import Control
from bruce_mp.ipc.start import Start
from bruce_mp.slab import layout as lay
from bruce_mp.slab.file import Slab
from bruce_mp.status.process import main

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path
    from socket import socket

__all__ = ["StatusProcess"]


def _run(start: Start, slab_path: Path, connection: Connection) -> None:
    main(start, Slab(slab_path), Control(connection))


class StatusProcess:
    """The process, and the supervisor's end of its control pipe.  Leaving the context kills it if it is still there."""

    def __init__(self, slab_path: Path, run_dir: Path, listener: socket, *, report_interval_s: int = 600) -> None:
        listen = f"unix:{listener.getsockname()}" if listener.family == AF_UNIX else Http().listen
        http = Http(listen=listen, discard_report_interval_s=report_interval_s, history_dir=str(run_dir))
        config = Config(kafka=Kafka(bootstrap_servers=("127.0.0.1:1",)), http=http)
        start = Start("status", lay.ROW_STATUS, config, run_dir, listener=listener)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.connection = ours
        self.control = Control(ours)
        self.process: BaseProcess = context.Process(target=_run, args=(start, slab_path, theirs))
        self.process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()
