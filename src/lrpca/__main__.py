"""``python -m lrpca`` is the command ``lrpca``."""

import sys

from lrpca.cli import main

if __name__ == "__main__":
    sys.exit(main())
