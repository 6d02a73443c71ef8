"""The `gateloop` command. Each subcommand imports what it needs when it runs."""

import argparse
import os
import shlex
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from mlx_gateloop import __version__
from mlx_gateloop.errors import InputError

Arguments = argparse.Namespace


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 done, 2 the user's input was wrong (one line on stderr), 130 interrupted.
    """
    arguments = _parser().parse_args(argv)
    arguments.argv = sys.argv[1:] if argv is None else argv
    # transformers would tell every user that PyTorch is missing.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        arguments.run(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has gone: `gateloop generate ... | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if "Failed to compile function" not in str(error):
            raise
        # MLX compiles into a folder of the temporary directory that all users share.
        advice = "if its folder mlx belongs to another user, set TMPDIR to a directory of yours"
        print(f"error: MLX cannot compile in {tempfile.gettempdir()}; {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f"\n{interrupt or 'interrupted'}", file=sys.stderr)
        return 130
    return 0


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return super()._get_help_string(action) if action.default else action.help


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="gateloop",
        description="GateLoop language models on MLX: train, evaluate, generate.",
        epilog="example: gateloop train --data my.txt --out models/mine",
    )
    parser.add_argument("--version", action="version", version=f"gateloop {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, add in _COMMANDS.items():
        summary, example = _HELP[name]
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=Formatter,
        )
        add(command)
    return parser


_HELP = {
    "train": (
        "train a model on text",
        "gateloop train --config configs/demo.yaml --data my.txt --out models/mine",
    ),
    "eval": (
        "perplexity and bits per byte of a text",
        "gateloop eval --model models/mine --data held_out.txt",
    ),
    "generate": (
        "stream a continuation or an answer",
        'gateloop generate --model models/mine --prompt "Once upon a time"',
    ),
    "memory-horizon": (
        "compare data-controlled and fixed state transitions on the paper's Memory Horizon task",
        "gateloop memory-horizon --preset bar --out runs/bar",
    ),
    "recall": (
        "the same comparison on associative recall, asked at every position",
        "gateloop recall --preset small --out runs/recall",
    ),
    "induction": (
        "the same comparison on the induction head task",
        "gateloop induction --preset small --out runs/induction",
    ),
    "bench": (
        "time our code beside its peers, in one run",
        "gateloop bench ops --out results",
    ),
    "doctor": (
        "what this machine runs on, what is missing, and how to get it",
        "gateloop doctor",
    ),
    "mlx-lm": (
        "any mlx_lm command, with the model type registered",
        "gateloop mlx-lm convert --hf-path models/mine --mlx-path models/mine-4bit -q",
    ),
}


def _add_train(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--config", type=Path, metavar="FILE", help="YAML; none: the demo preset, or the run's own")
    add(
        "--data",
        default="pydoc",
        metavar="PATH",
        help="a text file, a folder, a .jsonl file, a folder with WikiText-103, or one of `pydoc` "
        "(Python's documentation) and `wikitext-103` (from the Hugging Face hub)",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="becomes a model directory")
    add("--resume", action="store_true", help="continue the run that DIR holds, bit for bit")
    for flag, (key, type_, text) in _TRAIN_FLAGS.items():
        metavar = {int: "N", float: "X", str: "NAME"}[type_]
        add(flag, dest=key, type=type_, metavar=metavar, help=text, default=argparse.SUPPRESS)
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other key of the configuration, such as model.dropout=0.1; may be repeated",
    )
    command.set_defaults(run=_train)


_TRAIN_FLAGS: dict[str, tuple[str, Any, str]] = {
    "--steps": ("steps", int, "optimizer steps"),
    "--epochs": ("epochs", float, "passes over the text, instead of steps"),
    "--batch-size": ("data.batch_size", int, "sequences a batch"),
    "--length": ("data.length", int, "tokens a sequence"),
    "--learning-rate": ("optimizer.learning_rate", float, "peak learning rate"),
    "--dtype": ("dtype", str, "float32, bfloat16 or float16"),
    "--seed": ("seed", int, "of weights, data order and dropout"),
}


def _train(arguments: Arguments) -> None:
    from mlx_gateloop.train import TrainConfig, train

    keys = {key for key, _, _ in _TRAIN_FLAGS.values()}
    overrides = {key: value for key, value in vars(arguments).items() if key in keys}
    if {"steps", "epochs"} <= overrides.keys():
        raise InputError("--steps and --epochs: give one of them")
    overrides |= _settings(arguments.set, "model.dropout=0.1")
    path = arguments.config
    if path is None and arguments.resume:
        path = arguments.out / "config.yaml"
    config = TrainConfig.load(path, overrides)
    result = train(config, arguments.data, arguments.out, resume=arguments.resume)
    print(f"saved {result.out} after {result.steps} steps", end="")
    print(f", validation loss {result.best_loss:.4f} nats/token")


def _settings(arguments: list[str], example: str) -> dict[str, Any]:
    """The values of `--set KEY=VALUE`, each read as YAML."""
    import yaml

    values = {}
    for setting in arguments:
        key, equals, value = setting.partition("=")
        if not equals:
            raise InputError(f"--set {setting}: expected KEY=VALUE, such as {example}")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"--set {setting}: {value!r} is not a YAML value") from None
    return values


def _add_eval(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    _add_model(command)
    add("--data", required=True, metavar="PATH", help="what `gateloop train --data` takes")
    add(
        "--split",
        choices=("all", "train", "validation", "test"),
        default="all",
        help="all of it, or a part as the model's training cut it",
    )
    add(
        "--length",
        type=int,
        metavar="N",
        help="tokens of context; none: as in the model's training, or 256",
    )
    add("--batch-size", type=int, metavar="N", default=8, help="sequences at once")
    command.set_defaults(run=_eval)


def _eval(arguments: Arguments) -> None:
    from mlx_gateloop import load
    from mlx_gateloop.data import encode, load_corpus, load_documents, num_bytes
    from mlx_gateloop.evaluate import evaluate
    from mlx_gateloop.train import TrainConfig

    model, tokenizer = load(arguments.model)
    # a run keeps its configuration beside the model
    path = Path(arguments.model) / "config.yaml"
    config = TrainConfig.load(path if path.exists() else None)
    length = config.data.length if arguments.length is None else arguments.length
    for name, value in (("length", length), ("batch_size", arguments.batch_size)):
        if value < 1:
            raise InputError(f"{name}: expected at least 1, got {value}")
    if arguments.split == "all":
        documents = load_documents(arguments.data)
    else:
        corpus = load_corpus(arguments.data, config.data.validation_fraction)
        documents = getattr(corpus, arguments.split)
        if not documents:
            raise InputError(f"{arguments.data}: has no {arguments.split} part")
    result = evaluate(
        model,
        encode(documents, tokenizer),
        num_bytes(documents),
        length,
        arguments.batch_size,
    )
    print(f"tokens         {result.tokens:,}")
    print(f"loss           {result.loss_nats:.4f} nats/token")
    print(f"perplexity     {result.perplexity:.3f} per token")
    print(f"bits per byte  {result.bits_per_byte:.4f}")


def _add_generate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    _add_model(command)
    add("--prompt", default="", help="text to continue; `-` reads it from standard input")
    add("--chat", action="store_true", help="the prompt is a question to answer")
    add("--system", help="a system message, with --chat")
    add("--max-tokens", type=int, default=256, help="tokens at most")
    add("--temperature", type=float, default=0.8, help="0 takes the likeliest token")
    add("--top-p", type=float, default=1.0, help="nucleus of this probability; 1 is off")
    add("--top-k", type=int, default=0, help="this many likeliest tokens; 0 is off")
    add("--min-p", type=float, default=0.0, help="share of the likeliest token's probability")
    add("--repetition-penalty", type=float, default=1.0, help="1 is off")
    add("--seed", type=int, help="for the same text every time")
    add("--stop", action="append", default=[], metavar="TEXT", help="end here; may be repeated")
    command.set_defaults(run=_generate)


def _generate(arguments: Arguments) -> None:
    from mlx_gateloop import load
    from mlx_gateloop.generate import Sampling, Speed, stream

    sampling = Sampling(
        arguments.temperature,
        arguments.top_p,
        arguments.top_k,
        arguments.min_p,
        arguments.repetition_penalty,
        arguments.seed,
    )
    text = _prompt(arguments.prompt)
    prompt: str | list[dict[str, str]] = text
    if arguments.chat:
        prompt = [{"role": "user", "content": text}]
        if arguments.system is not None:
            prompt.insert(0, {"role": "system", "content": arguments.system})
    elif arguments.system is not None:
        raise InputError("--system: a system message needs --chat")
    model, tokenizer = load(arguments.model)
    speed = Speed()
    pieces = stream(
        model,
        tokenizer,
        prompt,
        sampling,
        max_tokens=arguments.max_tokens,
        stop=arguments.stop,
        speed=speed,
    )
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    print(
        f"prompt: {speed.prompt_tokens} tokens, {speed.prompt_tokens_per_second:,.0f} tokens/s; "
        f"generated: {speed.tokens} tokens, {speed.tokens_per_second:,.0f} tokens/s",
        file=sys.stderr,
    )


def _prompt(argument: str) -> str:
    data = sys.stdin.buffer.read() if argument == "-" else os.fsencode(argument)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"--prompt: not UTF-8 text (at byte {error.start})") from None


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", required=True, metavar="DIR", help="a model directory or hub id"
    )


_PRESETS = {
    "memory-horizon": "small (the paper's function, minutes), bar (a running sum, two minutes) or "
    "paper (its own settings, hours)",
    "recall": "small (minutes) or author (the sizes of the paper's author, hours)",
    "induction": "small (minutes)",
}


def _add_experiment(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--preset", default="small", metavar="NAME", help=_PRESETS[command.prog.split()[-1]])
    add("--out", type=Path, required=True, metavar="DIR", help="results.md, figures, all runs")
    add("--resume", action="store_true", help="go on with what DIR holds, bit for bit")
    add("--seeds", type=int, metavar="N", help="train each model N times; none: the preset's")
    add(
        "--transitions",
        metavar="A,B",
        help="models to compare, by state transition; none: data_controlled,fixed",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another setting: of the task, such as task.length=128 or task.function=running_sum, "
        "or of the training, such as steps=500; may be repeated",
    )
    command.set_defaults(run=_experiment, name=command.prog.split()[-1])


def _experiment(arguments: Arguments) -> None:
    from mlx_gateloop.experiments import PRESETS, run

    presets = PRESETS[arguments.name]
    if arguments.preset not in presets:
        raise InputError(
            f"--preset {arguments.preset}: no such preset; choose {', '.join(presets)}"
        )
    settings = _settings(arguments.set, "task.length=128")
    for name in ("seeds", "transitions"):
        if getattr(arguments, name) is not None:
            settings[name] = getattr(arguments, name)
    experiment = presets[arguments.preset].changed_by(settings)
    run(experiment, arguments.out, arguments.resume, shlex.join(["gateloop", *arguments.argv]))
    print((arguments.out / "results.md").read_text(encoding="utf-8"))


def _add_bench(command: argparse.ArgumentParser) -> None:
    from mlx_gateloop.bench import REPORTS

    add = command.add_argument
    add(
        "what",
        choices=REPORTS,
        nargs="?",
        default="ops",
        help="ops: the scan, the operator and what is around them; model: prefill and decode; "
        "train: a training step",
    )
    add("--quick", action="store_true", help="small sizes only: seconds instead of minutes")
    add("--out", type=Path, metavar="DIR", help="also write Markdown and plots here")
    command.set_defaults(run=_bench)


def _bench(arguments: Arguments) -> None:
    from mlx_gateloop.bench import write_report

    write_report(arguments.what, arguments.quick, arguments.out)


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=_doctor)


def _doctor(arguments: Arguments) -> None:
    from mlx_gateloop.doctor import report

    print(report())


def _add_mlx_lm(command: argparse.ArgumentParser) -> None:
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="SUBCOMMAND ...")
    command.set_defaults(run=_mlx_lm)


def _mlx_lm(arguments: Arguments) -> None:
    from mlx_lm import cli  # the model type was registered by importing mlx_gateloop

    words = arguments.arguments or ["--help"]
    for flag, value in pairwise(words):
        is_path = value.startswith(("/", ".", "~"))
        if flag in ("--model", "--hf-path") and is_path and not Path(value).expanduser().exists():
            raise InputError(f"{flag} {value}: no such model directory")
    before = sys.argv
    sys.argv = ["mlx_lm", *words]
    try:
        cli.main()
    except ValueError as error:
        if not str(error).startswith("CLI requires a subcommand"):
            raise
        raise InputError(f"mlx-lm {words[0]}: no such command; see gateloop mlx-lm") from None
    finally:
        sys.argv = before


_COMMANDS = {
    "train": _add_train,
    "eval": _add_eval,
    "generate": _add_generate,
    "memory-horizon": _add_experiment,
    "recall": _add_experiment,
    "induction": _add_experiment,
    "bench": _add_bench,
    "doctor": _add_doctor,
    "mlx-lm": _add_mlx_lm,
}
