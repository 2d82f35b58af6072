"""The formulas of the iteration on plain arrays, and what all other packages need; imports none of them."""
