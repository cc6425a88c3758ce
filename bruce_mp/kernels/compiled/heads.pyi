from bruce_mp.kernels.pure.heads import by_place as by_place
from bruce_mp.kernels.pure.heads import heads as heads
from bruce_mp.kernels.pure.heads import keyed_records as keyed_records
