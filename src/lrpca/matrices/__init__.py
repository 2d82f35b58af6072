"""Where Y lives: each kind of container knows how to make one pass over itself."""
