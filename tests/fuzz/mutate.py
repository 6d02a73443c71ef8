"""Changes of bytes, and of what they mean, drawn from a random generator."""

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import msgpack
from google.protobuf.json_format import MessageToDict, ParseDict
from sentencepiece import sentencepiece_model_pb2 as sentencepiece

Tree = Any  # dicts and lists of values; a text that is itself JSON is a tree too
# Reads a file's bytes to a tree and writes it.
Codec = tuple[Callable[[bytes], Tree], Callable[[Tree], bytes]]

BYTES = [
    b"\0", b"\xff" * 8, b"\x7f" * 4, b"\xc3", b"\xed\xa0\x80", b"\r", b"\n\n", b'"', b"{", b"]",
    b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"&a [*a, *a]", b"2020-13-45", b"!!int x", b"- ? ",
    b": ", b"!!python/object/apply:os.system ['touch ran']", b"{{ 9 }}", b"\xe2\x80\xa8",
]  # fmt: skip
VALUES: list[Tree] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**18, 0.5, 1e308, -0.0,
    float("nan"), float("inf"), "", "x" * 1000, "a\nb", "\0", "../..", "/dev/zero", "{{ 1 / 0 }}",
    [], {}, [[]], {"": None}, {"type": "x"}, [1, "a", None],
]  # fmt: skip


def change_bytes(data, chance):
    """Flip, overwrite, cut out, repeat, insert or cut off bytes at a random place."""
    start = chance.randint(0, len(data))
    stop = min(len(data), start + chance.choice((0, 1, 2, 8, 64, len(data))))
    part, other = data[start:stop], chance.randint(0, len(data))
    flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in part[:1])
    new = (flipped + part[1:], chance.choice(BYTES), b"", part[:64] * 50, data[other : other + 64])
    return data[:start] + chance.choice(new) + data[stop:]


def change_tree(tree, chance):
    """Return a copy in which one node is replaced, removed, repeated or renamed."""
    if isinstance(tree, (dict, list)) and tree and chance.random() < 0.9:
        return _change_inside(tree, chance)
    if isinstance(tree, bytes):
        return change_bytes(tree, chance)
    if isinstance(tree, msgpack.ExtType):  # an array: its shape, dtype and values
        array = change_tree(msgpack.unpackb(tree.data, raw=True), chance)
        return msgpack.ExtType(tree.code, msgpack.packb(array))
    if isinstance(tree, str) and tree[:1] in ("{", "["):
        return json.dumps(change_tree(json.loads(tree), chance))
    if isinstance(tree, int) and not isinstance(tree, bool) and chance.random() < 0.5:
        return chance.choice((tree + 1, tree - 1, -tree, tree * 2, tree * 10**6, float(tree)))
    return chance.choice(VALUES)


def _change_inside(tree, chance):
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    key = chance.choice(list(copy)) if isinstance(copy, dict) else chance.randrange(len(copy))
    kind = chance.randrange(12)
    if kind == 0:
        del copy[key]
    elif kind == 1 and isinstance(copy, list):
        copy[key:key] = [copy[key]] * chance.choice((1, 3))
    elif kind == 1 and isinstance(key, str):
        copy[change_bytes(key.encode(), chance).decode(errors="replace")] = copy.pop(key)
    elif kind == 2:
        copy[key] = [copy[key]]
    else:
        copy[key] = change_tree(copy[key], chance)
    return copy


def mutate(data, codec, chance):
    """Change the bytes of a file, or what they mean where `codec` reads and writes it."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        if codec is None or chance.random() < 0.4:
            data = change_bytes(data, chance)
            continue
        read, write = codec
        try:
            data = write(change_tree(read(data), chance))
        except Exception:  # an earlier change left nothing to read, or what cannot be written
            data = change_bytes(data, chance)
    return data


def _read_safetensors(data):
    size = int.from_bytes(data[:8], "little")
    return [json.loads(data[8 : 8 + size]), data[8 + size :]]


def _write_safetensors(tree):
    header = json.dumps(tree[0]).encode()
    return len(header).to_bytes(8, "little") + header + tree[1]


def _read_zip(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write_zip(tree):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in tree.items():
            archive.writestr(name, member)
    return file.getvalue()


JSON: Codec = (json.loads, lambda tree: json.dumps(tree).encode(errors="surrogatepass"))
LINES: Codec = (
    lambda data: [json.loads(line) for line in data.splitlines()],
    lambda tree: "\n".join(map(json.dumps, tree)).encode(),
)
SAFETENSORS: Codec = (_read_safetensors, _write_safetensors)
ZIP: Codec = (_read_zip, _write_zip)
MSGPACK: Codec = (lambda data: msgpack.unpackb(data, strict_map_key=False), msgpack.packb)
SENTENCEPIECE: Codec = (
    lambda data: MessageToDict(sentencepiece.ModelProto.FromString(data)),
    lambda tree: ParseDict(tree, sentencepiece.ModelProto()).SerializeToString(),
)
