from bruce_mp.kernels.pure.intake import Intake as Intake
from bruce_mp.kernels.pure.lanes import Lanes as Lanes
from bruce_mp.kernels.pure.pace import Pace as Pace
