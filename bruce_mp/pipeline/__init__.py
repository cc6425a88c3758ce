"""Parts that the processes on the path of a message share."""
