from bruce_mp.kernels.pure.encode import encode as encode
