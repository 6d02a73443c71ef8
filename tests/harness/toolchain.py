"""Compiles what runs on the CPU, once for each source: a cache in the temporary directory."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent / "cpu"
# Locals start as a large negative number, so that none is taken for a value by chance.
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w", f"-I{HERE}")
FLAGS += ("-ftrivial-auto-var-init=pattern", "-U_FORTIFY_SOURCE")
PREPROCESS = ("-E", "-x", "c++", "-std=c++17", "-w")
SANITIZE = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1")


def absence():
    return "the harness switches fibers as Linux does" if sys.platform != "linux" else no_compiler()


def no_compiler():
    if compiler() is None:
        return f"no C++ compiler was found: {' or '.join(_compilers())}"
    return None if _works() else f"{compiler()} compiles nothing"


@cache
def compiler():
    return next(filter(None, map(shutil.which, _compilers())), None)


def _compilers():
    return [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]


@cache
def _works():
    command = [str(compiler()), "-fsyntax-only", "-x", "c++", "-"]
    return not subprocess.run(command, input=b"int x;", capture_output=True, check=False).returncode


def compile_cpp(arguments, text=None):
    """Compile, and return what the compiler prints."""
    command = [str(compiler()), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"a kernel does not compile:\n{done.stderr[:4000]}")
    return done.stdout


@cache
def preprocess(text):
    return _cached([*PREPROCESS, "-"], text, ".i").read_text()


@cache
def runtime(sanitized):
    files = map(str, sorted(HERE.glob("*.cpp")))
    return ctypes.CDLL(_built("", sanitized, *files), mode=ctypes.RTLD_GLOBAL)


@cache
def kernel(source, sanitized=False):
    runtime(sanitized)
    return ctypes.CDLL(_built(source, sanitized, "-nostdlib", "-x", "c++", "-")).kernel


def _built(source, sanitized, *arguments):
    flags = [*FLAGS, *(SANITIZE if sanitized else ()), *arguments, "-shared"]
    return str(_cached(flags, source, ".so"))


def _cached(arguments, text, suffix):
    whole = "\0".join((str(compiler()), _runtime_text(), text, *arguments))
    whole = whole.replace(str(HERE), "")  # another checkout's are the same
    cached = _cache() / f"{hashlib.sha256(whole.encode()).hexdigest()[:24]}{suffix}"
    if not cached.exists():
        beside = cached.with_suffix(f".{os.getpid()}")
        compile_cpp([*arguments, "-o", str(beside)], text)
        beside.replace(cached)
    return cached


@cache
def _runtime_text():
    return "".join(path.read_text() for path in sorted(HERE.iterdir()))


@cache
def _cache():
    directory = Path(tempfile.gettempdir()) / f"mlx_gateloop-kernels-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():  # libraries that someone else could have written
        directory = Path(tempfile.mkdtemp(prefix="mlx_gateloop-kernels-"))
    return directory
