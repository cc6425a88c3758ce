from bruce_mp.kernels.pure.waits import waits as waits
