"""The parts of `bruce monitor`: what is read, how it is judged, what is remembered."""
