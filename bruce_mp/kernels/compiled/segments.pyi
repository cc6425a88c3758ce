from bruce_mp.kernels.pure.inspect import by_size as by_size
from bruce_mp.kernels.pure.segments import assign_sequences as assign_sequences
from bruce_mp.kernels.pure.segments import bind_partition as bind_partition
from bruce_mp.kernels.pure.segments import claim as claim
from bruce_mp.kernels.pure.segments import set_state as set_state
from bruce_mp.kernels.pure.segments import split_at as split_at
from bruce_mp.kernels.pure.segments import split_by_partition as split_by_partition
from bruce_mp.kernels.pure.segments import write_sequence as write_sequence
