"""Triton kernels: the fused pass on a GPU and the small work between two passes."""
