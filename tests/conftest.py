import os
import signal

# Small matrices gain nothing by threads of BLAS or PyTorch, and lose much where several tests run at once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# scikit-learn skips one of its estimator checks unless this is set before scipy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# A shell starts background jobs with SIGINT ignored, and processes inherit that: tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
