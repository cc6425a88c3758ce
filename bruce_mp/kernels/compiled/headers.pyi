from bruce_mp.kernels.pure.headers import by_place as by_place
from bruce_mp.kernels.pure.headers import read_headers as read_headers
