from bruce_mp.kernels.pure.lanes import Lanes as Lanes
