"""Command line: prepares a base model below a data folder and prints where it is."""

import argparse
import sys
from pathlib import Path

from gpu_workers.models import smollm2, tiny
from gpu_workers.models.folder import ModelError


def main() -> int:
    """Entry point of `python -m gpu_workers.models`."""
    parser = argparse.ArgumentParser(prog="python -m gpu_workers.models", description=__doc__)
    parser.add_argument("model", choices=[smollm2.NAME, "smollm2", "tiny"])
    parser.add_argument("--home", type=Path, required=True, help="data folder; the model goes to HOME/models/NAME")
    parser.add_argument("--seed", type=int, default=0, help="initialisation of the tiny model")
    options = parser.parse_args()
    home = options.home.expanduser().resolve()
    try:
        folder = tiny.prepare(home, seed=options.seed) if options.model == "tiny" else smollm2.prepare(home)
    except (ModelError, OSError) as error:
        sys.stderr.write(f"cannot prepare {options.model}: {error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
