"""Factors and samples on a torch device."""
