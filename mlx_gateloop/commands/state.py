"""`gateloop state`: state files, shown and mixed."""

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="what a state file holds, layer by layer")
    show.add_argument("state", metavar="STATE")
    show.set_defaults(run=_show)
    mix = actions.add_parser("mix", help="a weighted sum of states of one model")
    mix.add_argument("states", metavar="STATE", nargs="+")
    text = "a factor for each state; by default their mean"
    mix.add_argument("--factors", metavar="X", nargs="+", type=float, help=text)
    mix.add_argument("--out", required=True, metavar="STATE", help="the new state file")
    mix.set_defaults(run=_mix)


def _show(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.mixing import describe
    from mlx_gateloop.io.tables import name_value_lines

    print(name_value_lines(describe(arguments.state)))


def _mix(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.mixing import mix

    factors = arguments.factors or [1 / len(arguments.states)] * len(arguments.states)
    mix(arguments.states, factors, arguments.out)
    print(f"saved {arguments.out}")
