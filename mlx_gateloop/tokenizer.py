"""Tokenizers: sentencepiece BPE trained on a text, or plain bytes; both round-trip any text.

Both become a transformers tokenizer with the tokens of `CHAT_TEMPLATE`. mlx-lm streams text by the
decoder that it finds; its fast path and others lose characters that `TextStream` keeps.
"""

import io
import json
import math
import os
import random
import re
from bisect import bisect_left
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from mlx_gateloop.errors import InputError, one_line

if TYPE_CHECKING:  # slow to import
    from transformers import PreTrainedTokenizerFast

UNK, BOS, EOS, PAD = "<unk>", "<s>", "</s>", "<pad>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
_SPECIAL = (UNK, BOS, EOS, PAD, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% if message['tool_calls'] %}{{ message['tool_calls'] | tojson }}{% endif %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SPACE = "\u2581"  # a space in the pieces of sentencepiece
_PART = "\ufffd"  # how `decode` writes a letter that lacks bytes
_BYTE = re.compile("<0x[0-9A-F]{2}>")
LETTER = 4  # bytes at most
CONTEXT = 8  # tokens that decide how the next one is written

# Text for sentencepiece: runs without line ends, so that no piece spans lines, and without the
# characters that it reserves. It would drop sentences that have one or are too long.
_SENTENCE = re.compile("[^\n\r\t\0\u2581\u2585]{1,4096}")
_LONGEST_PIECE = 512  # sentencepiece's own default is 16
_SAMPLE_CHARACTERS = 20_000_000


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """Train a sentencepiece BPE tokenizer with byte fallback; the same texts give the same one.

    Spaces belong to the word that follows; each digit and each line end is a token of its own. It
    reads a random sample of the lines of texts above 20 million characters. `vocab_size` includes
    special tokens and the 256 bytes; the text may support fewer.
    """
    import sentencepiece

    texts, chance = list(texts), random.Random(0)
    share = _SAMPLE_CHARACTERS / max(1, sum(map(len, texts)))
    sentences = [
        # A piece that looks like a byte token would be read as one.
        match[0].replace("<0x", "<0")
        for text in texts
        for match in _SENTENCE.finditer(text)
        if share >= 1 or chance.random() < share
    ]
    if not sentences:
        raise InputError("there is no text to train a tokenizer on; give a longer one")
    least = len(_SPECIAL) + 256
    if vocab_size <= least:
        reason = f"{vocab_size} leaves nothing to learn besides {least} bytes and special tokens"
        advice = "choose a larger one, or the tokenizer kind bytes"
        raise InputError(f"tokenizer.vocab_size: {reason}; {advice}")
    # Every common character gets an entry; keep at least as many entries for learned pieces.
    counts = Counter(chain.from_iterable(sentences)).most_common()
    if rare := dict.fromkeys(ord(c) for c, _ in counts[max(1, (vocab_size - least) // 2) :]):
        sentences = [sentence.translate(rare) for sentence in sentences]  # they become bytes
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        max_sentence_length=4 * 4096,  # bytes
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        control_symbols=[TURN_START, TURN_END],
        minloglevel=2,
    )
    return _convert(model.getvalue(), "the trained model")


def from_sentencepiece(
    path: str | os.PathLike[str], vocab_size: int | None = None
) -> "PreTrainedTokenizerFast":
    """Read a `.model` file that round-trips every text.

    The special tokens that it lacks are added, as far as they fit into `vocab_size`.
    """
    try:
        return _convert(Path(path).read_bytes(), str(path), vocab_size)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a sentencepiece .model file") from error
    except Exception as error:  # tokenizers raises nothing narrower for pieces that do not fit
        raise InputError(f"{path}: damaged: {one_line(error)}; give another .model file") from None


def _convert(
    serialized: bytes, name: str, vocab_size: int | None = None
) -> "PreTrainedTokenizerFast":
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(serialized)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    required = {
        "model_type=bpe": trainer.model_type == trainer.BPE,
        "byte_fallback=true": trainer.byte_fallback,
        "normalization_rule_name=identity": not normalizer.precompiled_charsmap,
        "remove_extra_whitespaces=false": not normalizer.remove_extra_whitespaces,
        "add_dummy_prefix=false": not normalizer.add_dummy_prefix,
    }
    if wrong := [option for option, holds in required.items() if not holds]:
        raise InputError(f"{name}: it would change text; train it with {', '.join(wrong)}")
    longest = max((len(piece.piece) for piece in proto.pieces), default=0)
    if longest > _LONGEST_PIECE:  # its merges are searched in quadratic time
        raise InputError(f"{name}: a piece of {longest} characters; at most {_LONGEST_PIECE}")
    # Pieces hold real spaces here, so that U+2581 can represent itself (as three bytes).
    pieces = [piece.piece.replace(_SPACE, " ") for piece in proto.pieces]
    ids = {piece: index for index, piece in enumerate(pieces)}
    typed = [*zip(pieces, proto.pieces, strict=True)]
    scores = {piece: p.score for piece, p in typed if p.type == p.NORMAL}
    model = BPE(ids, _merges(scores, ids), unk_token=trainer.unk_piece, byte_fallback=True)
    tokenizer = Tokenizer(model)
    added = [piece for piece, p in typed if p.type == p.USER_DEFINED]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in added])
    special, unused = {}, math.inf if vocab_size is None else vocab_size - len(pieces)
    for end, default in (("bos", BOS), ("eos", EOS), ("pad", PAD)):
        if (index := getattr(trainer, f"{end}_id")) >= 0 or unused > 0:
            special[f"{end}_token"] = pieces[index] if index >= 0 else default
            unused -= index < 0
    turns = [TURN_START, TURN_END] if unused >= 2 else []
    return _wrap(tokenizer, turns, unk_token=trainer.unk_piece, **special)


def _merges(scores: dict[str, float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """All merges of two pieces into a third, in sentencepiece's order: best score first."""
    splits = [
        (-score, ids[piece[:i]], ids[piece[i:]], piece[:i], piece[i:])
        for piece, score in scores.items()
        for i in range(1, len(piece))
        if piece[:i] in scores and piece[i:] in scores
    ]
    return [(left, right) for *_, left, right in sorted(splits)]


def byte_tokenizer(special: bool = True) -> "PreTrainedTokenizerFast":
    """Make a tokenizer whose ids 0 to 255 are the bytes of UTF-8, before any special tokens."""
    # ASCII as characters: decoders replace a whole run of byte tokens if one byte is invalid.
    vocabulary = [chr(i) if i < 128 else f"<0x{i:02X}>" for i in range(256)] + [UNK] * special
    ids = {token: i for i, token in enumerate(vocabulary)}
    if not special:
        return _wrap(Tokenizer(BPE(ids, [], byte_fallback=True)), [])
    tokenizer = Tokenizer(BPE(ids, [], unk_token=UNK, byte_fallback=True))
    turns, ends = [TURN_START, TURN_END], {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    return _wrap(tokenizer, turns, unk_token=UNK, **ends)


def _wrap(tokenizer: Tokenizer, turns: list[str], **special: str) -> "PreTrainedTokenizerFast":
    # Exactly this sequence: mlx-lm compares it to choose its streaming detokenizer.
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        extra_special_tokens=turns,
        **special,
    )


class TextStream:
    """Turns tokens into what each adds to the text, after the tokens `before`."""

    def __init__(self, tokenizer: Any, before: Sequence[int] = ()) -> None:
        self._decode, self._piece = tokenizer.decode, tokenizer.convert_ids_to_tokens
        self._letter = getincrementaldecoder("utf-8")("replace")
        self._context, self._known, self._new = list[int](), "", list[int]()
        for token in before[-CONTEXT:]:
            self.add(token)
        self._context, self._new = [*self._context, *self._new], []
        self._known = self._decode(self._context) if self._context else ""

    def add(self, token: int) -> str:
        """Return what a token adds; a letter's bytes belong to its last token."""
        piece, byte = str(self._piece(token)), b""
        if _BYTE.fullmatch(piece) and self._decode([token]) != piece:
            byte = bytes([int(piece[1:-1], 16)])
        letter = self._letter.decode(byte, final=not byte)
        if byte:  # `decode` would replace all bytes in a row for one that is no letter's
            letter = (self._rest() if self._new else "") + letter
            self._context, self._new = [*self._context, *self._new, token][-CONTEXT:], []
            self._known = self._decode(self._context)
            return letter
        self._new.append(token)
        text, size = self._rest(), len(self._new)
        if text.endswith(_PART):
            if size < CONTEXT or text.strip(_PART):
                return letter
            # Bytes of no letter, or U+FFFD: after a whole one, which is one letter, not three.
            size = min(range(size, size - LETTER, -1), key=lambda n: len(self._rest(n)))
            text = self._rest(size)
        self._context, self._new = self._new[:size], self._new[size:]
        self._known = self._decode(self._context)
        return letter + text

    def end(self) -> str:
        """Return what was held back: the beginning of a letter."""
        return self._letter.decode(b"", final=True) + (self._rest() if self._new else "")

    def _rest(self, size: int | None = None) -> str:
        return self._decode([*self._context, *self._new[:size]])[len(self._known) :]


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Split a text into what each token adds, see `TextStream`."""
    stream = TextStream(tokenizer)
    texts = [stream.add(token) for token in ids]
    return [*texts[:-1], texts[-1] + stream.end()] if texts else []


def plain_ids(tokenizer: Any, text: str, as_text: bool = True) -> list[int]:
    """Encode a text without the tokens around it; `as_text` keeps special tokens in it text."""
    return tokenizer.encode(
        text, add_special_tokens=False, split_special_tokens=as_text, verbose=False
    )


def template_ids(
    tokenizer: Any, messages: Sequence[dict[str, Any]], tools: Any = None, **options: Any
) -> list[int]:
    """Encode messages by the chat template; what looks like a special token in them stays text."""
    given = [[*messages], tools]
    try:
        mark = unused(json.dumps(given, ensure_ascii=False, default=str))
        broken = hidden(tokenizer, given, mark)
        is_plain = broken == given
        written = tokenizer.apply_chat_template(
            *broken, tokenize=is_plain, return_dict=False, **options
        )
    except Exception as error:  # a template may raise anything
        reason = one_line(error)
        raise InputError(f"the chat template cannot write a conversation: {reason}") from None
    if is_plain:
        return written
    if json.dumps(mark)[1:-1] in written:
        raise InputError("the chat template escapes what looks like a special token; leave it out")
    parts = written.split(mark)
    return text_ids(tokenizer, "".join(parts), list(accumulate(map(len, parts)))[:-1])


def text_ids(tokenizer: Any, text: str, typed: list[int] | None) -> list[int]:
    """Encode a template's text; special tokens at the positions `typed`, None is all, stay text."""
    if typed is None:
        return plain_ids(tokenizer, text)

    def has_typed(begin: int, end: int) -> bool:
        return bisect_left(typed, begin) < bisect_left(typed, end)

    spans = [m.span() for m in specials(tokenizer).finditer(text) if typed]
    edges = [0, *(edge for span in spans if not has_typed(*span) for edge in span), len(text)]
    parts = [(text[begin:end], has_typed(begin, end)) for begin, end in pairwise(edges)]
    return [
        token
        for as_text, group in groupby(parts, key=lambda part: part[1])
        for token in plain_ids(tokenizer, "".join(part for part, _ in group), as_text)
    ]


def specials(tokenizer: Any) -> "re.Pattern[str]":
    """Return a pattern of the texts that a tokenizer reads as special tokens."""
    special = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special} - {""}
    return re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)")


def hidden(tokenizer: Any, given: Any, mark: str) -> Any:
    """Put a mark into each special token of the texts in a value, before its last letter."""
    special = specials(tokenizer)

    def marked(value: Any) -> Any:
        if isinstance(value, str):
            return special.sub(lambda m: f"{m[0][:-1]}{mark}{m[0][-1]}", value)
        if isinstance(value, dict):
            return {marked(key): marked(each) for key, each in value.items()}
        return [*map(marked, value)] if isinstance(value, list | tuple) else value

    return marked(given)


def unused(text: str) -> str:
    """Return a character that is not in the text; the ranges are longer than any text."""
    marks = chain(range(0xAC00, 0xD7A4), range(0xE000, 0x110000))  # Python writes the first as is
    return next(mark for mark in map(chr, marks) if mark not in text)


def start_ids(tokenizer: Any) -> list[int]:
    """Return the token that a text begins with, if the tokenizer adds one."""
    return [token for token in tokenizer.encode("") if token == tokenizer.bos_token_id]


def largest_id(tokenizer: Any) -> int:
    """Return the largest id that a tokenizer makes; its entries may leave out some ids."""
    return max(tokenizer.get_vocab().values(), default=0)


def stop_token_ids(tokenizer: Any) -> list[int]:
    """Return the ids that end a generation: the end of the text and of a chat turn."""
    vocabulary = tokenizer.get_vocab()
    own = [vocabulary[token] for token in (tokenizer.eos_token, TURN_END) if token in vocabulary]
    given = getattr(tokenizer, "eos_token_ids", None)  # of mlx-lm's wrapper, from the config
    return [*own, *sorted(given - {*own})] if isinstance(given, set) else own
