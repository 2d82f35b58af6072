"""Solvers, one paper one file."""
