"""Choosing the rank: a rough solution tells about how many components there are, a solution confirms it."""
