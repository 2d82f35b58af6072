import os
import signal

# scikit-learn skips one of its estimator checks unless this is set before scipy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# A shell starts background jobs with SIGINT ignored, and processes inherit that: tests of Ctrl-C would wait in vain.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
