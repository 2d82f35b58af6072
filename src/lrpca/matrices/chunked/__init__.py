"""Matrices larger than memory, or on other machines: read, and written, block by block."""
