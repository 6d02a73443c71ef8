"""Formats whose meaning can be changed: each pair reads a file's bytes to a tree and writes it."""

import io
import json
import zipfile

import msgpack
from google.protobuf.json_format import MessageToDict, ParseDict
from sentencepiece import sentencepiece_model_pb2 as sentencepiece

from .mutate import Codec

JSON: Codec = (json.loads, lambda tree: json.dumps(tree).encode(errors="surrogatepass"))


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


def _read_msgpack(data):
    def extension(code, content):
        return {"extension": code, "content": msgpack.unpackb(content, raw=True)}

    return msgpack.unpackb(data, ext_hook=extension, strict_map_key=False)


def _write_msgpack(tree):
    def pack(tree):
        if not isinstance(tree, dict):
            return tree
        if tree.keys() == {"extension", "content"}:
            return msgpack.ExtType(tree["extension"], msgpack.packb(tree["content"]))
        return {key: pack(value) for key, value in tree.items()}

    return msgpack.packb(pack(tree))


LINES: Codec = (
    lambda data: [json.loads(line) for line in data.splitlines()],
    lambda tree: "\n".join(map(json.dumps, tree)).encode(),
)
SAFETENSORS: Codec = (_read_safetensors, _write_safetensors)
ZIP: Codec = (_read_zip, _write_zip)
MSGPACK: Codec = (_read_msgpack, _write_msgpack)
SENTENCEPIECE: Codec = (
    lambda data: MessageToDict(sentencepiece.ModelProto.FromString(data)),
    lambda tree: ParseDict(tree, sentencepiece.ModelProto()).SerializeToString(),
)
