"""The parts of `bruce monitor`: readings, checks, and the state file."""
