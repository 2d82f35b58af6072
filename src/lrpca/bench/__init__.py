"""Measuring: contests of solvers, and the paper's experiments."""
