from bruce_mp.kernels.pure.receive import Receiver as Receiver
