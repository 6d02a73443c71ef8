"""`gateloop read`: read text of any length into a state file."""

import argparse
import hashlib
import sys
import time
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mlx_gateloop.commands.parser import add_model
from mlx_gateloop.errors import InputError

BLOCK = 1 << 14  # bytes encoded at once
LINE = 1 << 20  # bytes after a block in which its last line must end, or is cut
TOKENS = 2048  # read in one pass
SECONDS = 60.0  # between two saves


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("text", metavar="FILE|-|FOLDER", help="UTF-8 text; `-` reads standard input")
    add_model(command)
    add("--out", required=True, metavar="STATE", help="the state file, for generate --state")
    add("--resume", action="store_true", help="continue reading where the state file ends")
    command.set_defaults(run=_read)


def _read(arguments: argparse.Namespace) -> None:
    from tqdm import tqdm

    from mlx_gateloop import load
    from mlx_gateloop.io import states
    from mlx_gateloop.io.files import require_new
    from mlx_gateloop.io.interrupt import interrupt_flag
    from mlx_gateloop.model.state import State

    out = Path(arguments.out)
    if not arguments.resume:
        if out.exists():
            raise InputError(f"{out}: exists; add --resume to continue it, or give another file")
        require_new(out)
    parts = _parts(arguments.text)
    model, tokenizer = load(arguments.model)
    hashed = states.hashes(model, tokenizer)
    state = State(model.make_cache())
    if arguments.resume:
        state = states.read_hashed(out, model, hashed)
        if not state.source:
            advice = "leave out --resume and give another --out"
            raise InputError(f"{out}: the state is not of a text that `read` began; {advice}")
    size = sum(path.stat().st_size for path in parts if path is not None)
    start = saved = time.monotonic()
    before = whole = state.tokens
    bar = tqdm(total=size or None, initial=state.source, unit="B", unit_scale=True, disable=None)
    with interrupt_flag() as stop, bar:
        try:
            stop.may_raise = True  # while it waits for text
            for ids, read, digest in read_tokens(parts, tokenizer, state.source, state.digest):
                stop.may_raise = False
                for first in range(0, len(ids), TOKENS):
                    state.read(model, ids[first : first + TOKENS])
                bar.update(read - state.source)
                bar.set_postfix_str(f"{state.tokens:,} tokens")
                state.source, state.digest, whole = read, digest, state.tokens
                if time.monotonic() - saved > SECONDS:
                    states.write_hashed(out, state, hashed, arguments.model)
                    saved = time.monotonic()
                stop.may_raise = True
                if stop.is_set():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            more = f"{out}: {state.tokens:,} tokens; --resume continues" if state.tokens else ""
            raise KeyboardInterrupt(more) from None
        finally:
            stop.may_raise = False
            if state.tokens == whole > before:  # no block was left in the middle
                states.write_hashed(out, state, hashed, arguments.model)
    if state.logits is None:
        raise InputError(f"{arguments.text}: contains no text; give a file or folder with text")
    rate = (state.tokens - before) / (time.monotonic() - start)
    print(f"{out}: {state.tokens:,} tokens read, {rate:,.0f} tokens/s", file=sys.stderr)


def _parts(text: str) -> list[Path | None]:
    from mlx_gateloop.data.documents import text_files

    if text == "-" and sys.stdin is not None:
        return [None]
    path = Path(text)
    if not (path.is_file() or path.is_dir()):
        reason = "not a regular file" if path.exists() else "no such file or folder"
        raise InputError(f"{text}: {reason}; give one, or - for standard input")
    return [*text_files(path)[0]]


def read_tokens(
    parts: list[Path | None], tokenizer: Any, skipped: int, known: str = ""
) -> Iterator[tuple[list[int], int, str]]:
    """Yield the tokens of a block of text, the bytes read so far and their SHA-256.

    The first `skipped` bytes, with the SHA-256 `known` if that is not empty, were read before.
    Blocks end after a line if they can: most tokenizers then give the tokens of the whole text.
    Between two files come the tokens that the tokenizer has for the end and the start of a text.
    """
    from mlx_gateloop.tokenizer import plain_ids, start_ids

    read, between, has_begun, digest = 0, start_ids(tokenizer), False, hashlib.sha256()
    for path in parts:
        ids = between if read >= skipped else []
        with sys.stdin.buffer if path is None else path.open("rb") as file:
            blocks = _blocks(file, "standard input" if path is None else str(path))
            for number, (text, size) in enumerate(blocks):
                data, before = text.encode(), max(0, skipped - read)
                read += size
                has_begun = has_begun or text != "\ufeff"
                digest.update(data[:before])
                if 0 < before <= size and known not in ("", digest.hexdigest()):
                    why = f"the state has read {skipped:,} bytes of another text"
                    raise InputError(f"--resume: {why}; give that one")
                if read <= skipped:
                    continue
                digest.update(data[before:])
                if before > 0:  # the file has grown
                    if data[before - 1 : before] != b"\n":
                        why = f"the state's {skipped:,} bytes end in a line, which has grown"
                        raise InputError(f"--resume: {why}; read the text into a new file")
                    text = data[before:].decode()
                elif number == 0:
                    text = text.removeprefix("\ufeff")
                if text:
                    yield ids + plain_ids(tokenizer, text), read, digest.hexdigest()
                    ids = []
        if has_begun:  # an empty file before the text is none
            between = [t for t in (tokenizer.eos_token_id,) if t is not None] + start_ids(tokenizer)
    if read < skipped:
        raise InputError(f"--resume: the state has read {skipped:,} bytes, the text has {read:,}")


def _blocks(file: BinaryIO, name: str) -> Iterator[tuple[str, int]]:
    """Yield blocks of whole lines, or of a long line's whole characters, and their bytes."""
    decoder, offset, is_last = getincrementaldecoder("utf-8")(), 0, False
    while not is_last:
        block = file.read(BLOCK) + file.readline(LINE)
        is_last = not block
        try:
            text = decoder.decode(block, is_last)
        except UnicodeDecodeError as error:
            where = f"byte 0x{error.object[error.start]:02X} at offset {offset + error.start:,}"
            raise InputError(f"{name}: not UTF-8 text ({where}); convert it to UTF-8") from None
        if text:
            size = len(text.encode())
            yield text, size
            offset += size
