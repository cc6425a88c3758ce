from bruce_mp.kernels.pure.heads import by_place as by_place
from bruce_mp.kernels.pure.heads import heads as heads
