"""Every primitive and its derivatives in a shapeless compile, at shapes that were not traced.

A call must raise, or give what it gives without mx.compile; where that raises, it must raise too.
As reading beyond an array may end the process, this is a program of its own; its arguments are the
number of cases and a seed.
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from mlx_gateloop.ops.cpu import extension

native = extension()
# Letters in a shape: B, L, D or H, K and V, and N for an axis of mx.vmap.
Function = Callable[..., list[mx.array]]


class Call(NamedTuple):
    """A function of float32 arrays, and of bool "m" or int64 "t" ones, of these shapes."""

    name: str
    function: Function
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def operator(form, is_complex, has_h0, has_mask, reverse, gates, dtype):
    """The operator with gates of a form; `gates` is their last axis, empty if max-headed."""
    present = [True] * 4 + [is_complex, has_h0, has_mask]
    heads, values = ("BLHK", "BLHV") if gates else ("BLD", "BLD")
    state = f"B{1 + is_complex}HKV" if gates else f"B{1 + is_complex}D"
    gates = f"BLH{gates}" if gates else "BLD"
    shapes = [heads, heads, values, gates, gates, state, "mBL"]
    called = native.gate_loop if values == "BLD" else native.gate_loop_heads

    def function(*arrays):
        cast = 4 + is_complex
        left = iter([*(x.astype(dtype) for x in arrays[:cast]), *arrays[cast:]])
        given = [next(left) if there else None for there in present]
        y, last = called(*given, form=form, reverse=reverse)
        return [y.astype(mx.float32), last]

    inputs = tuple(shape for shape, there in zip(shapes, present, strict=True) if there)
    name = f"gate_loop{(form, is_complex, has_h0, has_mask, reverse, gates, dtype)}"
    return Call(name, function, inputs, (values, state))


def scan(planes_a, planes_x, has_h0, reverse):
    planes, both = max(planes_a, planes_x), planes_a + planes_x

    def function(*arrays):
        a, x, h0 = arrays[:planes_a], arrays[planes_a:both], arrays[both:]
        return list(native.linear_scan(list(a), list(x), list(h0), reverse=reverse))

    start = ("BD",) * planes if has_h0 else ()
    name = f"linear_scan{(planes_a, planes_x, has_h0, reverse)}"
    return Call(name, function, ("BLD",) * both + start, ("BLD",) * planes)


def relative(parts, width, has_mask):
    """Softmax attention of D tokens with relative positions; `width` is a transition's K or 1."""

    def function(q, k, v, *rest):
        keys = mx.concatenate([k, *rest[:parts]], -1)
        return [native.relative_attention(q, keys, v, *rest[parts:], parts=parts)]

    inputs = ("BHDK", "BHDK", "BHDV", *[f"BHD{width}"] * parts, *["mBHDD"] * has_mask)
    return Call(f"relative{(parts, width, has_mask)}", function, inputs, ("BHDV",))


OTHERS = [
    Call(name, lambda x, name=name: [getattr(native, name)(x)], ("BLD",), ("BLD",))
    for name in ("gelu", "silu", "sigmoid")
]
OTHERS += [
    # One array is weight and bias: the gradient would not read another bias.
    Call("norm", lambda x, w: [native.layer_norm(x, w, w, 1e-5)], ("BLD", "D"), ("BLD",)),
    Call("loss", lambda *x: [native.cross_entropy(*x)], ("BLD", "tBL"), ("BL",)),
]


def derivative(call, transform):
    """mx.vjp or mx.jvp by the float inputs: of the inputs, then cotangents or tangents."""
    count = len(call.inputs)
    indices = [i for i, shape in enumerate(call.inputs) if shape[0] not in "mt"]

    def function(*arrays):
        def of_floats(*floats):
            changed = dict(zip(indices, floats, strict=True))
            return call.function(*(changed.get(i, x) for i, x in enumerate(arrays[:count])))

        return transform(of_floats, [arrays[i] for i in indices], list(arrays[count:]))[1]

    floats = tuple(call.inputs[i] for i in indices)
    more, outputs = (call.outputs, floats) if transform is mx.vjp else (floats, call.outputs)
    return Call(f"{transform.__name__} of {call.name}", function, call.inputs + more, outputs)


def mapped(call):
    """The same under mx.vmap, the new axis first."""

    def shape(old):
        return old[0] + "N" + old[1:] if old[0] in "mt" else "N" + old

    inputs, outputs = (tuple(map(shape, shapes)) for shapes in (call.inputs, call.outputs))
    return Call(f"vmap of {call.name}", mx.vmap(call.function), inputs, outputs)


FIRST = [lambda c: c, lambda c: derivative(c, mx.vjp), lambda c: derivative(c, mx.jvp)]
ORDERS = [lambda c, f=f, g=g: g(f(c)) for f in FIRST for g in [*FIRST, mapped]]
flag = st.booleans()
types = st.sampled_from([mx.float32, mx.float16, mx.bfloat16])
CALLS = st.one_of(
    st.builds(operator, st.integers(0, 2), *[flag] * 4, st.sampled_from(["", "K", "1"]), types),
    st.builds(relative, st.integers(0, 2), st.sampled_from("K1"), flag),
    st.builds(scan, st.integers(1, 2), st.integers(1, 2), flag, flag),
    st.sampled_from(OTHERS),
)
# No axis of one: in a shapeless compile MLX's own x.sum(-1) ends the process there.
SMALL = st.sampled_from([2, 3, 5])
LENGTH, WIDTH = st.sampled_from([2, 3, 40, 2000]), st.sampled_from([2, 70])
SIZES = st.fixed_dictionaries({"L": LENGTH, "D": WIDTH, **dict.fromkeys("BHKVN", SMALL)})


def array(shape, sizes):
    """An array for a shape's letters and digits: normal numbers, True for "m", 0 for "t"."""
    lengths = [sizes.get(c) or int(c) for c in shape if c not in "mt"]
    if shape[0] in "mt":
        return mx.full(lengths, True) if shape[0] == "m" else mx.zeros(lengths, mx.int64)
    return 0.5 * mx.random.normal(lengths, key=mx.random.key(1))


def result(function, arrays):
    """The function's outputs; None if it raises, as it does for shapes that do not fit."""
    try:
        outputs = function(*arrays)
        mx.eval(outputs)
    except (ValueError, RuntimeError):
        return None
    return outputs


def check(call, order, at, captured):
    """Trace at the first sizes, call at the second; captured inputs (bits) keep the first."""
    call = order(call)
    print(call.name, *at, bin(captured), flush=True)  # if the process ends, this case ended it
    first, second = ([array(shape, sizes) for shape in call.inputs] for sizes in at)
    mx.eval(first, second)
    indices = [i for i in range(len(first)) if not captured >> i & 1]

    def function(*passed):
        given = dict(zip(indices, passed, strict=True))
        return list(call.function(*(given.get(i, x) for i, x in enumerate(first))))

    if not indices:
        return
    passed, others = ([xs[i] for i in indices] for xs in (first, second))
    compiled = mx.compile(function, shapeless=True)
    assert result(function, passed) is not None, "the case itself is wrong"
    if result(compiled, passed) is None or (got := result(compiled, others)) is None:
        return
    want = result(function, others)
    assert want is not None, "inputs that do not fit are taken"
    for x, right in zip(got, want, strict=True):
        assert x.shape == right.shape
        assert mx.allclose(x, right, 1e-4, 1e-4)


if __name__ == "__main__":
    limits = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    captured = st.one_of(st.just(0), st.sampled_from([1 << i for i in range(12)]), st.integers(0))
    cases = given(CALLS, st.sampled_from(ORDERS), st.tuples(SIZES, SIZES), captured)
    seed(int(sys.argv[2]))(settings(max_examples=int(sys.argv[1]), **limits)(cases(check)))()
