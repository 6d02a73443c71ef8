"""Instrumentation of a model: its layers report to one recording at a time.

Our layers have a callback, `TimeMixing.observe`. mlx-lm's call a recurrence by name: that name is
bound to a `Reporting` wrapper, and each layer gets a subclass that sets the current layer.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

import mlx.nn as nn

from mlx_gateloop.errors import InputError, one_line
from mlx_gateloop.model.layers import TimeMixing, padding_and_starts
from mlx_gateloop.ops import Transition
from mlx_gateloop.watch.hooks import FUNCTIONS, METHODS, Call, Hook, gate_loop_call
from mlx_gateloop.watch.recurrences import EditedRecurrence

ATTENTION = {"attn", "self_attn", "attention"}


class Instrumented:
    """A model with layers that can report; without a recording, nothing changes.

    Args:
        model: A model that `mlx_lm.load` or `gl.load` returned.

    Raises:
        InputError: The model is already instrumented.

    Examples:
        >>> import mlx_gateloop as gl
        >>> model = gl.Model(gl.ModelArgs(vocab_size=9, hidden_size=8, num_hidden_layers=2))
        >>> instrumented = Instrumented(model)
        >>> instrumented.names
        ['model.layers.0.time_mixing', 'model.layers.1.time_mixing']
        >>> instrumented.detach()
    """

    def __init__(self, model: nn.Module) -> None:
        modules = _recurrent_modules(model)
        every = [model, *modules.values()]
        if any("_watched" in vars(type(m)) or "observe" in vars(m) for m in every):
            raise InputError("model: already being recorded or edited; end that first")
        self.recurrences = [_recurrences(type(module)) for module in modules.values()]
        self.names, self.unwatched = list(modules), _unwatched(model, modules)
        self.recorder: Any = None  # it has the methods `receive`, `exclude` and `forward_pass`
        self.edited: dict[str, Callable[..., Any]] = {}  # recurrences by layer, see `edit`
        self._undo = ExitStack()
        try:
            for name, module in modules.items():
                self._instrument(Layer(self, name, module))
            self._override(model, {"__call__": self._model_call(type(model).__call__)})
        except BaseException:
            self.detach()
            raise

    @contextmanager
    def to(self, recorder: Any) -> Iterator[None]:
        """Send the reports of the block to a recorder."""
        before, self.recorder = self.recorder, recorder
        try:
            yield
        finally:
            self.recorder = before

    @contextmanager
    def replaced(self, name: str, edited: EditedRecurrence) -> Iterator[None]:
        """Edit the recurrence of a layer in the block."""
        self.edited[name] = edited.run
        try:
            yield
        finally:
            del self.edited[name]

    def detach(self) -> None:
        self._undo.close()

    def _instrument(self, layer: "Layer") -> None:
        module, cls = layer.module, type(layer.module)
        if isinstance(module, TimeMixing):
            module.observe = lambda *read: layer.report(lambda: gate_loop_call(module, *read))
            self._undo.callback(delattr, module, "observe")
            return
        methods = {
            name: _reporting_method(layer, getattr(cls, name), hook)
            for name, hook in METHODS.items()
            if hasattr(cls, name)
        }
        if called := set(_called(cls)):
            methods["__call__"] = _tracked_call(layer, cls.__call__)
        for function in called:
            self._undo.enter_context(_reporting(*function))
        self._override(module, methods)

    def _override(self, module: nn.Module, methods: dict[str, Any]) -> None:
        cls = type(module)
        own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_watched": True}
        object.__setattr__(module, "__class__", type(cls.__name__, (cls,), own | methods))
        self._undo.callback(object.__setattr__, module, "__class__", cls)

    def _model_call(self, model_call: Callable[..., Any]) -> Callable[..., Any]:
        def call(model: nn.Module, *args: Any, **options: Any) -> Any:
            if self.recorder is None:
                return model_call(model, *args, **options)
            ids = args[:1] or [options[name] for name in ("tokens", "inputs") if name in options]
            with self.recorder.forward_pass(*ids):
                return model_call(model, *args, **options)

        return call


class Layer(NamedTuple):
    """A recurrent layer of an instrumented model."""

    model: Instrumented
    name: str
    module: Any

    def run(self, function: Callable[..., Any], hook: Hook, args: Any, options: Any) -> Any:
        """Call a recurrence, or its edited form, and report the call."""
        if (edited := self.model.edited.get(self.name)) is None:
            result = function(*args, **options)
        else:
            result = edited(function, hook, _given(function, args, options))

        def call() -> Call:
            return Call(hook, _given(function, args, options), _signature(function)[2], self.module)

        self.report(call)
        return result

    def report(self, make_call: Callable[[], Call]) -> None:
        """Report a call of the recurrence; exclude the layer if that fails."""
        if (recorder := self.model.recorder) is None:
            return
        try:
            recorder.receive(self.name, make_call())
        except InputError as error:
            recorder.exclude(self.name, one_line(error))
        except Exception as error:  # mlx-lm's internals may change; the model continues
            recorder.exclude(self.name, f"{type(error).__name__}: {one_line(error)}")


RUNNING: ContextVar[Layer | None] = ContextVar("RUNNING", default=None)
BINDING = Lock()


class Reporting:
    """A wrapper of a recurrence of mlx-lm, which reports calls from instrumented layers."""

    def __init__(self, function: Callable[..., Any], hook: Hook) -> None:
        self.function, self.hook, self.users = function, hook, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        if (layer := RUNNING.get()) is None:
            return self.function(*args, **options)
        return layer.run(self.function, self.hook, args, options)


@contextmanager
def _reporting(module: ModuleType, name: str) -> Iterator[None]:
    """Replace a recurrence in a module of mlx-lm by its `Reporting` wrapper in the block."""
    with BINDING:
        bound = getattr(module, name)
        if not isinstance(bound, Reporting):
            bound = Reporting(bound, FUNCTIONS[name])
            setattr(module, name, bound)
        bound.users += 1
    try:
        yield
    finally:
        with BINDING:
            bound.users -= 1
            if not bound.users:
                setattr(module, name, bound.function)


def _tracked_call(layer: Layer, module_call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(module_call)
    def call(*args: Any, **options: Any) -> Any:
        token = RUNNING.set(layer)
        try:
            return module_call(*args, **options)
        finally:
            RUNNING.reset(token)

    return call


def _reporting_method(layer: Layer, method: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        return layer.run(method, hook, args, options)

    return call


def _given(function: Callable[..., Any], args: Any, options: Any) -> dict[str, Any]:
    """Return the arguments of a call by name; our family's mask may be resets of its decays."""
    parameters, defaults, _ = _signature(function)
    given = defaults | dict(zip(parameters, args, strict=False)) | options
    mask, starts = padding_and_starts(given.get("mask"))
    if starts is not None:
        given |= {"log_a": Transition.polar(given["log_a"]).reset(starts).first, "mask": mask}
    return given


@lru_cache(64)
def _signature(function: Callable[..., Any]) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return parameters, defaults and module names; `Signature.bind` takes far longer."""
    every = inspect.signature(function).parameters.values()
    positional = [p.name for p in every if p.kind is p.POSITIONAL_OR_KEYWORD]
    defaults = {p.name: p.default for p in every if p.default is not p.empty}
    return positional, defaults, inspect.unwrap(function).__globals__


def _recurrent_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Find the modules with a known recurrence, the first layer first."""
    modules = dict(model.named_modules())
    known = {
        cls: issubclass(cls, TimeMixing) or bool(_recurrences(cls))
        for cls in set(map(type, modules.values()))
    }
    # MLX names the last layer first.
    return {path: modules[path] for path in reversed(modules) if known[type(modules[path])]}


def _recurrences(cls: type) -> set[str]:
    """Return the names of the known functions and methods that a class calls."""
    return {name for _, name in _called(cls)} | {name for name in METHODS if hasattr(cls, name)}


def _called(cls: type) -> Iterator[tuple[ModuleType, str]]:
    """Yield the modules and names of the known functions that a class calls."""
    for _, method in inspect.getmembers(cls, inspect.isfunction):
        module: Any = sys.modules.get(method.__module__)  # mlx-lm keeps none of a model_file
        for name in FUNCTIONS.keys() & set(method.__code__.co_names):
            if callable(getattr(module, name, None)):
                yield module, name


def _unwatched(model: nn.Module, watched: dict[str, nn.Module]) -> dict[str, str]:
    """Explain why attention and other layers are not watched, by path."""
    reasons: dict[str, str] = {}
    modules = dict(model.named_modules())
    for path in modules:  # parents first
        inside = any(path == w or path.startswith(f"{w}.") for w in [*watched, *reasons])
        name = type(modules[path]).__name__
        if not inside and (path.split(".")[-1] in ATTENTION or "Attention" in name):
            reasons[path] = "attention keeps tokens unchanged, without a decay"
    for path in modules:
        seen = any(other.startswith(f"{path}.") for other in [*watched, *reasons])
        if re.search(r"(^|\.)layers\.\d+$", path) and not seen:
            reasons[path] = "no known recurrence"
    return {path: reasons[path] for path in reversed(modules) if path in reasons}
