from bruce_mp.kernels.pure.message_set import encode_message_set as encode_message_set
