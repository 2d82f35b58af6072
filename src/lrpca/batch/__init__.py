"""Many small problems of one shape at once: `lrpca.decompose_batch`.

The twin, in torch, of `lrpca.solvers.adaptive` and what that uses. Its numbers are read from the modules there
(`single`), private as they are, and not copied.
"""
