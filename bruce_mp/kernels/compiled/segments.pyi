from bruce_mp.kernels.pure.look import by_size as by_size
from bruce_mp.kernels.pure.segments import bind as bind
from bruce_mp.kernels.pure.segments import by_partition as by_partition
from bruce_mp.kernels.pure.segments import head_of as head_of
from bruce_mp.kernels.pure.segments import mark as mark
from bruce_mp.kernels.pure.segments import number as number
from bruce_mp.kernels.pure.segments import place as place
from bruce_mp.kernels.pure.segments import take as take
