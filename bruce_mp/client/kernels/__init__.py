"""The work of a client for each message, compiled where the package was built with a C compiler.

`pure` has it in Python, and is the reference. `compiled` has the same in Cython, file by file, and needs no further
libraries. The same tests run on both.

    SendBuffer      the messages of a stream client that are not written yet
    DatagramSender  sends one datagram for each message

Both accept only messages that need no error text and no wait. For any other message they return False, and the caller
takes its slow path, which raises the error or waits.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.client.kernels.pure.send_buffer import WrittenMessages
from bruce_mp.kernel_choice import KernelChoice, choose

CHOICE: Final[KernelChoice] = choose("bruce_mp.client.kernels", Path(__file__).parent)

if TYPE_CHECKING or not CHOICE.compiled:  # the types of both variants are those of the pure one
    from bruce_mp.client.kernels.pure.datagram_sender import DatagramSender
    from bruce_mp.client.kernels.pure.send_buffer import SendBuffer
else:
    from bruce_mp.client.kernels.compiled.datagram_sender import DatagramSender
    from bruce_mp.client.kernels.compiled.send_buffer import SendBuffer

__all__ = ["CHOICE", "DatagramSender", "SendBuffer", "WrittenMessages"]
