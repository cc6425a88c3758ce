from bruce_mp.kernels.pure.receive import DatagramReceiver as DatagramReceiver
