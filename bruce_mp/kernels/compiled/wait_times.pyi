from bruce_mp.kernels.pure.wait_times import wait_times as wait_times
