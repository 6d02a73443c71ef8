"""The `gateloop` command, also `python -m mlx_gateloop`."""

import sys


def main(argv: list[str] | None = None) -> int:
    """Run `cli.main`; Ctrl-C while Python imports it is no traceback either."""
    try:
        from mlx_gateloop import cli

        return cli.main(argv)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
