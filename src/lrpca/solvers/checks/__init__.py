"""Convergence checks: what a run is asked before it may be called converged."""
