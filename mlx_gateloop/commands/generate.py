"""`gateloop generate`."""

import argparse
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mlx_gateloop.commands.parser import add_model
from mlx_gateloop.errors import InputError

if TYPE_CHECKING:
    from mlx_gateloop.generate import Sampling, Speed

MAX_SAMPLES = 1024


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_generation(command)
    text = "a smaller model of this tokenizer proposes tokens; the same text at temperature 0"
    command.add_argument("--draft-model", metavar="MODEL", help=text)
    text = "propose the tokens that followed the same tokens before; the text stays the same"
    command.add_argument("--lookup", action="store_true", help=text)
    text = "continue from a state file of `gateloop read`, `tune` or `state mix`; a text that was "
    text += "read goes on if there is no prompt"
    command.add_argument("--state", metavar="FILE", help=text)
    text = "generate N texts in one batch, separated by lines of ---"
    command.add_argument("--samples", type=int, metavar="N", help=text)
    command.set_defaults(run=_generate)


def add_generation(command: argparse.ArgumentParser) -> None:
    """Add the model, the prompt and the sampling options."""
    add = command.add_argument
    add_model(command)
    text = "a question if the model has a chat template, else text to continue; `-` reads it "
    add("--prompt", default="", metavar="TEXT", help=text + "from standard input")
    add("--raw", action="store_true", help="continue the prompt without the chat template")
    add("--system", metavar="TEXT", help="a system message before the question")
    add("--max-tokens", type=int, default=256, metavar="N", help="maximum number of tokens")
    add("--temperature", type=float, default=0.8, metavar="X", help="0 takes the likeliest token")
    add("--top-p", type=float, default=1.0, help="sample within this total probability; 1 is off")
    add("--top-k", type=int, default=0, help="sample from this many likeliest tokens; 0 is off")
    add("--min-p", type=float, default=0.0, help="drop tokens below this share of the top one")
    text = "makes repeated tokens less likely; 1 is off"
    add("--repetition-penalty", type=float, default=1.0, metavar="X", help=text)
    add("--seed", type=int, metavar="N", help="makes the text repeatable")
    text = "end the output before TEXT; may be repeated, the first match counts"
    add("--stop", action="append", default=[], metavar="TEXT", help=text)


def _generate(arguments: argparse.Namespace) -> None:
    from mlx_gateloop import load, read_state
    from mlx_gateloop.generate import check_draft

    check_texts(arguments)
    names = ("samples", "draft_model", "lookup", "state")
    given = [name for name in names if getattr(arguments, name) not in (None, False)]
    if len(given) > 1 and given != ["lookup", "state"]:
        both = " and ".join(f"--{name.replace('_', '-')}" for name in given[:2])
        raise InputError(f"{both}: cannot be combined; leave one out")
    model, tokenizer = load(arguments.model)
    draft = None
    if arguments.draft_model is not None:
        draft, its_tokenizer = load(arguments.draft_model)
        check_draft(model, tokenizer, draft, its_tokenizer)
    state = None if arguments.state is None else read_state(arguments.state, model, tokenizer)
    print_generated(arguments, model, tokenizer, draft=draft, lookup=arguments.lookup, state=state)


def check_texts(arguments: argparse.Namespace) -> None:
    """Check what `add_generation` added, and read a prompt from standard input."""
    _sampling(arguments)
    if arguments.prompt == "-":
        if sys.stdin is None:
            raise InputError("--prompt -: standard input is closed; give the text as --prompt")
        arguments.prompt = sys.stdin.buffer.read()
    arguments.prompt = _utf_8("--prompt", arguments.prompt)
    if arguments.system is not None:
        arguments.system = _utf_8("--system", arguments.system)
    arguments.stop = [_utf_8("--stop", text) for text in arguments.stop]


def _sampling(arguments: argparse.Namespace) -> "Sampling":
    from mlx_gateloop.generate import Sampling

    return Sampling(*(getattr(arguments, field.name) for field in fields(Sampling)))


def print_generated(arguments: argparse.Namespace, model: Any, tokenizer: Any, **how: Any) -> None:
    """Print a continuation until an `end`, and its speed; the rest of `how` goes to `stream`."""
    from mlx_gateloop.generate import Speed, stream

    text, system, end = arguments.prompt, arguments.system, how.pop("end", None)
    prompt: str | list[dict[str, str]] = text
    state = how.get("state")
    continues = not text and system is None and state is not None and state.logits is not None
    if tokenizer.has_chat_template and not (arguments.raw or continues):
        prompt = [{"role": "user", "content": text}]
        if system is not None:
            prompt.insert(0, {"role": "system", "content": system})
    elif system is not None:
        reason = "leave out --raw" if arguments.raw else "this model has no chat template"
        raise InputError(f"--system: {reason}")
    speed = Speed()
    if vars(arguments).get("samples") is None:  # `watch` has no such option
        how |= {"max_tokens": arguments.max_tokens, "stop": arguments.stop, "speed": speed}
        pieces = stream(model, tokenizer, prompt, _sampling(arguments), **how)
    else:
        pieces = iter(["\n---\n".join(_samples(arguments, model, tokenizer, prompt, speed))])
    is_empty = True
    for piece in pieces:
        print(piece, end="", flush=True)
        is_empty = is_empty and not piece
        if end and end.is_set():
            break
    print()
    generated = f"{speed.tokens} tokens, {speed.tokens_per_second:,.0f} tokens/s"
    if is_empty:
        generated = f"no text, because the model {'or --stop ' * bool(arguments.stop)}ended at once"
    print(
        f"prompt: {speed.prompt_tokens} tokens, {speed.prompt_tokens_per_second:,.0f} tokens/s; "
        f"generated: {generated}",
        file=sys.stderr,
    )


def _samples(
    arguments: argparse.Namespace, model: Any, tokenizer: Any, prompt: Any, speed: "Speed"
) -> list[str]:
    """Draw several continuations of one prompt in a batch."""
    from mlx_lm import batch_generate

    from mlx_gateloop.generate import check_max_tokens, prompt_ids, sampler, until
    from mlx_gateloop.tokenizer import TextStream

    count, limit = arguments.samples, arguments.max_tokens
    if not 1 <= count <= MAX_SAMPLES:
        raise InputError(f"--samples: expected 1 to {MAX_SAMPLES:,}, got {count:,}")
    check_max_tokens(limit)
    draw, processors = sampler(_sampling(arguments))
    ids = prompt_ids(model, tokenizer, prompt)
    how = {"sampler": draw, "logits_processors": processors, "completion_batch_size": count}
    response = batch_generate(
        model, tokenizer, [ids] * count, max_tokens=limit, return_token_ids=True, **how
    )
    stats, texts = response.stats, []
    speed.prompt_tokens, speed.prompt_tokens_per_second = count * len(ids), stats.prompt_tps
    speed.tokens, speed.tokens_per_second = stats.generation_tokens, stats.generation_tps
    for tokens in response.token_ids:
        written = TextStream(tokenizer, ids)
        pieces = [*map(written.add, tokens), written.end()]
        texts.append("".join(until(iter(pieces), arguments.stop)))
    return texts


def _utf_8(option: str, text: str | bytes) -> str:
    """Check that a text is UTF-8; Python makes surrogates of other bytes in arguments."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{option}: not UTF-8 text (at byte {error.start})") from None
