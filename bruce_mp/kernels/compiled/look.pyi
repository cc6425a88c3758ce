from bruce_mp.kernels.pure.look import time_span as time_span
