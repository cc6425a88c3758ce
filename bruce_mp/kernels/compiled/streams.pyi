from bruce_mp.kernels.pure.outcomes import count_outcomes as count_outcomes
from bruce_mp.kernels.pure.split_stream import split_stream as split_stream
