"""`python -m gpu_workers.trainer`."""

import sys

from gpu_workers.trainer.main import main

if __name__ == "__main__":
    sys.exit(main())
