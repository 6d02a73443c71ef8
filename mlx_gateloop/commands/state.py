"""`gateloop state`: state files, shown and mixed."""

import argparse


def add_arguments(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(required=True, metavar="ACTION")
    show = actions.add_parser("show", help="describe a state file, layer by layer")
    show.add_argument("states", metavar="STATE", nargs=1)
    mix = actions.add_parser("mix", help="write a weighted sum of several states of one model")
    mix.add_argument("states", metavar="STATE", nargs="+")
    text = "one factor for each state; default: their mean"
    mix.add_argument("--factors", metavar="X", nargs="+", type=float, help=text)
    mix.add_argument("--out", required=True, metavar="STATE", help="the new state file")
    command.set_defaults(run=_run, out=None)


def _run(arguments: argparse.Namespace) -> None:
    from mlx_gateloop.io.states import describe, mix
    from mlx_gateloop.io.tables import name_value_lines

    states = arguments.states
    if arguments.out is None:
        print(name_value_lines(describe(states[0])))
        return
    mix(states, arguments.factors or [1 / len(states)] * len(states), arguments.out)
    print(f"saved {arguments.out}")
