"""The work of a client for each message, compiled if the package was built with a C compiler.

The modules of `pure` do this work in Python, and specify it. Each module of `compiled` does the same as the module of
the same name in `pure`, but in Cython. The same tests run on both.

    SendBuffer      the messages of a stream client that are not written yet
    DatagramSender  sends one datagram for each message

Both have a method `accept`, the fast path of `Client.send()`. It handles only messages that can be sent or buffered at
once. For any other message it returns False, and `send()` takes the slow path, which waits or raises an error.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from bruce_mp.client.kernels.pure.send_buffer import WrittenMessages
from bruce_mp.kernel_choice import KernelChoice, choose

CHOICE: Final[KernelChoice] = choose("bruce_mp.client.kernels", Path(__file__).parent)

if TYPE_CHECKING or not CHOICE.compiled:  # the pure variant declares the types of both
    from bruce_mp.client.kernels.pure.datagram_sender import DatagramSender
    from bruce_mp.client.kernels.pure.send_buffer import SendBuffer
else:
    from bruce_mp.client.kernels.compiled.datagram_sender import DatagramSender
    from bruce_mp.client.kernels.compiled.send_buffer import SendBuffer

__all__ = ["CHOICE", "DatagramSender", "SendBuffer", "WrittenMessages"]
