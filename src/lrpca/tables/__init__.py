"""Robust principal axes of tables: the fit behind `RobustPCA`, wide and narrow, and the filling of gaps."""
