import os

# scikit-learn skips one of its estimator checks unless this is set before scipy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
