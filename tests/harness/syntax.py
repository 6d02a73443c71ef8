"""Has clang check a Metal kernel, with real address spaces, for what Apple's compiler refuses."""

import re
from importlib.util import find_spec

from harness import toolchain

OPTIONS = ("-std=c++17", "--target=x86_64-linux-gnu", "-nostdinc", "-Wall", "-Wextra")
OPTIONS += ("-Wconversion", "-Wdouble-promotion", "-Wno-unknown-attributes")
OPTIONS += ("-Wno-unused-parameter", "-Wno-sign-conversion", "-Wno-sign-compare")
OPTIONS += ("-Wno-implicit-int-conversion", "-Wno-shorten-64-to-32", "-Wno-unused-variable")


def absence():
    return toolchain.no_compiler() if find_spec("clang") else "libclang is not installed"


def complaints(text):
    from clang.cindex import Diagnostic, Index

    text = toolchain.preprocess(text)
    # Where clang differs: it wants no attributes of its own here, and what is in an address space
    # must be static.
    text = re.sub(r"template \[\[host_name[^\]]*\]\] \[\[kernel\]\]", "template", text)
    text = re.sub(r"\bthreadgroup\s+[\w:]+\s+\w+\s*[\[;]", r"static \g<0>", text)
    files = [("kernel.cpp", (toolchain.HERE / "syntax.h").read_text() + text)]
    unit = Index.create().parse("kernel.cpp", args=OPTIONS, unsaved_files=files)
    return [d.spelling for d in unit.diagnostics if d.severity >= Diagnostic.Warning]
