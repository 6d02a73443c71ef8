"""Taps on the modules of one model, which report to one recording at a time.

A module gets a subclass of its own class. There the methods that call a recurrence are the same
code with other globals, in which the recurrence's name is the tap's. So neither mlx-lm's modules
nor other models of the same type change, and the arithmetic is the model's own.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial, wraps
from types import FunctionType
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.watch.taps import FUNCTIONS, METHODS, Call, Tap

KEEPS_ALL = {"attn", "self_attn", "attention"}


class Listener(Protocol):
    """Receives what the layers of a model do, by their paths."""

    def receive(self, name: str, call: Call) -> None:
        """Receive one call of a layer's recurrence."""

    def refuse(self, name: str, reason: str) -> None:
        """Leave a layer out from now on."""

    def forward_pass(self, tokens: mx.array | None = None) -> AbstractContextManager[None]:
        """Take one forward pass of the model over tokens `[1, length]`."""


class Tapped:
    """A model with taps; without a recorder they do nothing.

    Args:
        model: A model that `mlx_lm.load` or `gl.load` returned.

    Raises:
        InputError: It has taps already.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = _found(model)
        if any(map(_is_attached, [model, *modules.values()])):
            raise InputError("model: it is being recorded already; leave that recording first")
        self.names, self.unwatched = list(modules), _others(model, modules)
        self.recorder: Listener | None = None
        self._modules: list[Any] = [*modules.values(), model]
        try:
            for name, module in modules.items():
                _replace_class(module, self._methods(name, module))
            _replace_class(model, {"__call__": self._call(type(model).__call__)})
        except BaseException:
            self.detach()
            raise

    @contextmanager
    def to(self, recorder: Listener) -> Iterator[None]:
        """Let a recorder receive what the model does in the block."""
        before, self.recorder = self.recorder, recorder
        try:
            yield
        finally:
            self.recorder = before

    def detach(self) -> None:
        """Make the model as it was before."""
        for module in filter(_is_attached, self._modules):
            object.__setattr__(module, "__class__", type(module)._watched)
        self._modules = []  # a compiled function may keep the taps

    def _call(self, model_call: Callable[..., Any]) -> Callable[..., Any]:
        def call(model: nn.Module, *args: Any, **options: Any) -> Any:
            if self.recorder is None:
                return model_call(model, *args, **options)
            with self.recorder.forward_pass(*args[:1]):
                return model_call(model, *args, **options)

        return call

    def _methods(self, name: str, module: Any) -> dict[str, Any]:
        """Make the methods of a module that tell the recorder."""
        cls, methods = type(module), {}
        for method_name, tap in METHODS.items():
            if (method := getattr(cls, method_name, None)) is not None:
                methods[method_name] = self._tapped(method, tap, name, module)
        for method_name, method in _calling(cls):
            names, tapped = dict(method.__globals__), {}
            for function in FUNCTIONS.keys() & set(method.__code__.co_names):
                tapped[function] = self._tapped(names[function], FUNCTIONS[function], name, module)
            methods[method_name] = _with_globals(method, names | tapped)
        return methods

    def _tapped(
        self, original: Callable[..., Any], tap: Tap, name: str, module: Any
    ) -> Callable[..., Any]:
        """Wrap a recurrence: its result is as without, and a report that fails is a refusal."""
        described = cache(partial(_described, original))

        @wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            result = original(*args, **options)
            if (recorder := self.recorder) is None:
                return result
            try:
                parameters, defaults, names = described()
                given = defaults | dict(zip(parameters, args, strict=False)) | options
                given["return"] = result if tap.prepare else None
                recorder.receive(name, Call(tap, given, names, module))
            except InputError as error:
                recorder.refuse(name, one_line(error))
            except Exception as error:  # mlx-lm's internals may change; the model goes on
                recorder.refuse(name, f"{type(error).__name__}: {one_line(error)}")
            return result

        return call


def _found(model: nn.Module) -> dict[str, nn.Module]:
    """Find the modules with a known recurrence, in the order of their paths."""
    modules = dict(model.named_modules())
    recurrent = {cls for cls in set(map(type, modules.values())) if _has_recurrence(cls)}
    modules = {path: module for path, module in modules.items() if type(module) in recurrent}
    return {path: modules[path] for path in sorted(modules, key=_natural)}


def _others(model: nn.Module, watched: dict[str, nn.Module]) -> dict[str, str]:
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


def _replace_class(module: Any, methods: dict[str, Any]) -> None:
    """Give a module a subclass of its class with other methods."""
    cls = type(module)
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_watched": cls}
    object.__setattr__(module, "__class__", type(cls.__name__, (cls,), own | methods))


def _is_attached(module: Any) -> bool:
    return "_watched" in vars(type(module))


def _has_recurrence(cls: type) -> bool:
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
