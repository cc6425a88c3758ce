from bruce_mp.kernels.pure.encode import encode as encode
from bruce_mp.kernels.pure.encode import record_batch as record_batch
