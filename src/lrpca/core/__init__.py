"""The formulas of the iteration on plain arrays, and what all other packages need; imports none of them.

Shapes that the whole library shares, and signatures do not repeat: Y (n1, n2), L (n1, r), R (n2, r), their changes dL
and dR, the matrices A (n2, ka) and B (n1, kb) that a pass multiplies by, and row weights `weight` (n1,).
"""
