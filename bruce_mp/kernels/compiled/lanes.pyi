from bruce_mp.kernels.pure.arrival_rate import ArrivalRate as ArrivalRate
from bruce_mp.kernels.pure.intake import DatagramIntake as DatagramIntake
from bruce_mp.kernels.pure.lanes import Lanes as Lanes
