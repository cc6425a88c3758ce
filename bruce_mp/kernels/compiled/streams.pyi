from bruce_mp.kernels.pure.cut import cut as cut
from bruce_mp.kernels.pure.tally import tally as tally
