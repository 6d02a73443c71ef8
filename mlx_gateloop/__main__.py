"""`python -m mlx_gateloop`, the same as `gateloop`."""

import sys

from mlx_gateloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
