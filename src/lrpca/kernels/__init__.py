"""The fused pass, once per backend: `reference` in plain NumPy is the specification, `cpu` the numba form."""
