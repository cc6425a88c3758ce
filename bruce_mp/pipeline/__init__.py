"""Parts that the processes on the path of a message share: pending batches, message debugging, corrupted memory."""
