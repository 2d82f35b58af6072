"""Choosing the rank: the look that finds about how many components there are, the solution, the record of both."""
