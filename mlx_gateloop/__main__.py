"""The `gateloop` command, also `python -m mlx_gateloop`."""

import sys

MAY_NEED_TORCH = ("convert", "bench", "mlx-lm")


def main(argv: list[str] | None = None) -> int:
    """Run `cli.main`; Ctrl-C while Python imports it is no traceback either."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv and argv[0] not in MAY_NEED_TORCH:
            import mlx_gateloop.no_torch  # noqa: F401  # for its effect
        from mlx_gateloop import cli

        return cli.main(argv)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
