"""Taps on the modules of one model, for a while.

A module gets a subclass of its own class. There the methods that call a recurrence are the same
code with other globals, in which the recurrence's name is the tap's. So neither mlx-lm's modules
nor other models of the same type change, and the arithmetic is the model's own.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from types import FunctionType
from typing import Any

import mlx.nn as nn

from mlx_gateloop.errors import one_line
from mlx_gateloop.watch.taps import FUNCTIONS, METHODS, Call, Tap

Receive = Callable[[Call], None]
Refuse = Callable[[str], None]
KEEPS_ALL = {"attn", "self_attn", "attention"}


def found(model: nn.Module) -> dict[str, nn.Module]:
    """Find the modules with a known recurrence, in the order of their paths."""
    known: dict[type, bool] = {}
    modules = {}
    for path, module in model.named_modules():
        cls = type(module)
        if known.setdefault(cls, cls in known or _taps(cls)):
            modules[path] = module
    return {path: modules[path] for path in sorted(modules, key=_natural)}


def others(model: nn.Module, watched: dict[str, nn.Module]) -> dict[str, str]:
    """Say of the attention modules and the other layers of a model why they are not watched."""
    reasons: dict[str, str] = {}
    modules = dict(model.named_modules())
    for path in sorted(modules, key=_natural):
        inside = any(path == w or path.startswith(f"{w}.") for w in [*watched, *reasons])
        name = type(modules[path]).__name__
        if not inside and (path.split(".")[-1] in KEEPS_ALL or "Attention" in name):
            reasons[path] = "attention keeps tokens as they are: no decay to see"
    for path in modules:
        seen = any(other.startswith(f"{path}.") for other in [*watched, *reasons])
        if re.search(r"(^|\.)layers\.\d+$", path) and not seen:
            reasons[path] = "no recurrence that is known"
    return {path: reasons[path] for path in sorted(reasons, key=_natural)}


def attach(module: Any, receive: Receive, refuse: Refuse) -> None:
    """Tap a module's recurrence.

    Args:
        module: One that `found` returned.
        receive: Called after each call of the recurrence.
        refuse: Called with the reason where a call cannot be received.
    """
    cls, methods = type(module), {}
    for name, tap in METHODS.items():
        if (method := getattr(cls, name, None)) is not None:
            methods[name] = _tapped(method, tap, module, receive, refuse)
    for name, method in _calling(cls):
        names, tapped = dict(method.__globals__), {}
        for function in FUNCTIONS.keys() & set(method.__code__.co_names):
            tapped[function] = _tapped(
                names[function], FUNCTIONS[function], module, receive, refuse
            )
        methods[name] = _with_globals(method, names | tapped)
    replace_class(module, methods)


def replace_class(module: Any, methods: dict[str, Any]) -> None:
    """Give a module a subclass of its class with other methods; `restore_class` undoes it."""
    cls = type(module)
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_watched": cls}
    object.__setattr__(module, "__class__", type(cls.__name__, (cls,), own | methods))


def restore_class(module: Any) -> None:
    object.__setattr__(module, "__class__", type(module)._watched)


def is_attached(module: Any) -> bool:
    return "_watched" in vars(type(module))


def _taps(cls: type) -> bool:
    """Tell if a class has a recurrence."""
    return any(hasattr(cls, name) for name in METHODS) or next(_calling(cls), None) is not None


def _calling(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the methods of a class, and of those that it inherits from, that call a recurrence."""
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        called = FUNCTIONS.keys() & set(method.__code__.co_names)
        if any(callable(method.__globals__.get(function)) for function in called):
            yield name, method


def _with_globals(method: FunctionType, names: dict[str, Any]) -> FunctionType:
    copy = FunctionType(
        method.__code__, names, method.__name__, method.__defaults__, method.__closure__
    )
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy


def _tapped(
    original: Callable[..., Any], tap: Tap, module: Any, receive: Receive, refuse: Refuse
) -> Callable[..., Any]:
    """Wrap a recurrence: its result is as without, and a report that fails is a refusal."""
    described = cache(partial(_described, original))

    @wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        try:
            parameters, defaults, names = described()
            given = defaults | dict(zip(parameters, args, strict=False)) | options
            given["return"] = result if tap.prepare else None
            receive(Call(tap, given, names, module))
        except Exception as error:  # mlx-lm's internals may change; the model goes on
            refuse(f"{type(error).__name__}: {one_line(error)}")
        return result

    return call


def _described(
    function: Callable[..., Any],
) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return a function's positional parameters, its defaults and its module's names.

    `inspect.Signature.bind` would take as long as a small operation of MLX.
    """
    every = inspect.signature(function).parameters.values()
    positional = [p.name for p in every if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in every if p.default is not p.empty}
    return positional, defaults, inspect.unwrap(function).__globals__


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]
