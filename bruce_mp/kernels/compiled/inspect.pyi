from bruce_mp.kernels.pure.inspect import time_span as time_span
