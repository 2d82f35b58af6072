"""The formulas of the iteration on plain arrays, and what everything else stands on; imports nothing above."""
