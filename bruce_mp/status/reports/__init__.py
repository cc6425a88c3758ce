"""Files that the status process writes, and the topic of dead letters."""
