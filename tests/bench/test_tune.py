"""The tuning of the kernels on a device whose timings are known."""

import json
import math
from dataclasses import replace
from functools import partial

import mlx.core as mx
import pytest
from harness import metal_kernel
from helpers import gated
from helpers.reference import random_case

from mlx_gateloop.bench import tune
from mlx_gateloop.cli import main
from mlx_gateloop.commands import doctor
from mlx_gateloop.ops import backends
from mlx_gateloop.ops.gpu import launch_config
from mlx_gateloop.ops.gpu import operator as gpu
from mlx_gateloop.ops.gpu.kernels import Kernels
from mlx_gateloop.ops.gpu.launch_config import DEFAULTS, SEGMENTS, Tuning

DEFAULT = DEFAULTS["metal"]


class Device:
    """A GPU that runs `slots` threadgroups at a time, each step in a time that S decides."""

    def __init__(self, slots, cost=lambda name, bits, S: 1.0, launch=0.0, folded=1.0):
        self.slots, self.cost, self.launch, self.folded = slots, cost, launch, folded
        self.works = []

    def __call__(self, work):
        self.works.append(work)
        B, L, D = work.shape
        parts = work.plan.parts
        waves = math.ceil(B * D // 32 * parts / self.slots)
        cost = self.cost(work.name, 8 * work.dtype.size, work.plan.segments)
        cost *= (1 if parts == 1 else 2) * (self.folded if work.plan.fold else 1)
        return waves * L / parts * cost + self.launch * (parts > 1)


@pytest.mark.parametrize("slots", [8, 14, 40, 80, 264])
def test_the_crossing_is_found(slots):
    tuning = tune.tune(Device(slots), DEFAULT)
    assert 0.6 * slots <= 2 * tuning.cores <= slots


def test_each_pass_type_and_size_has_its_own_segments():
    def cost(name, bits, S):
        if name == "backward":
            return {16: 3.0, 8: 2.0, 4: 1.0}[S]
        return abs(S - 8) + 1.0 if bits == 32 else 1.0 / S

    tuning = tune.tune(Device(40, cost), DEFAULT)
    segments = {"forward 32": 8, "forward 16": 16, "backward 32": 4, "backward 16": 4}
    assert tuning.few == tuning.many == {kind: (S, False) for kind, S in segments.items()}
    folded = tune.tune(Device(40, cost, folded=0.9), DEFAULT)
    assert folded.few == {kind: (S, True) for kind, S in segments.items()}


def test_small_differences_and_refused_segments_change_nothing():
    noise = {16: 1.0, 8: 1.02, 4: 0.99}
    tuning = tune.tune(Device(40, lambda _, __, S: noise[S]), DEFAULT)
    joins = {*tuning.few.values()}, {*tuning.many.values()}
    assert joins == ({(16, False)}, {(8, False)})
    refused = tune.tune(Device(40, lambda _, __, S: math.inf if S == 16 else 1.0), DEFAULT)
    assert {*refused.few.values()} <= {(8, False), (4, False)}


def test_parts_are_used_where_they_pay():
    def parts(launch):
        tuning = tune.tune(Device(80, launch=launch), DEFAULT)
        return launch_config.plan(tuning, "forward 32", 1, 32768, 32).parts

    assert parts(0.0) > 30
    assert parts(1e9) == 1


@pytest.mark.parametrize("each", [0.5, 1.7, 4.0, 7.0, 29.0])
def test_the_measurement_ends_within_its_time(each):
    """A simulated clock: each measurement takes as many seconds."""
    device = Device(40, lambda _, __, S: float(S))  # 4 segments are best
    limited = tune.Within(device, tune.LONGEST, lambda: each * len(device.works))
    tuning = tune.tune(limited, DEFAULT)
    assert each * len(device.works) < 120
    assert limited.ended == (each > 1)
    joins = list(tuning.few.values())
    measured = max(0, len(device.works) - len(tune.GROUPS)) // 6  # six joins for a pass and type
    assert joins[:measured] == [(4, False)] * min(len(joins), measured)
    assert all(join in ((16, False), (4, False)) for join in joins)
    if len(device.works) < len(tune.GROUPS):
        assert tuning.cores == DEFAULT.cores
    else:
        assert 24 <= 2 * tuning.cores <= 40


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(launch_config.Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


@pytest.fixture
def tuned(home, monkeypatch):
    """A machine with Metal kernels; a measurement takes a moment."""
    entry = backends.BACKENDS["metal"]._replace(why_missing=lambda: None)
    monkeypatch.setitem(backends.BACKENDS, "metal", entry)
    kernels = Kernels("metal", metal_kernel)
    monkeypatch.setattr(gpu, "kernels", lambda _: kernels)
    monkeypatch.setattr(tune, "stopwatch", lambda _: Device(14))
    return kernels


def test_what_was_measured_is_used_kept_and_told(tuned):
    line, where = tune.tune_this_gpu().splitlines()
    assert line.startswith(f"{launch_config.device()}: {tuned.tuning.cores} cores, parts from")
    assert where == f"kept in {launch_config.tunings_file()}"
    assert launch_config.stored(launch_config.device()) == tuned.tuning != DEFAULT
    assert f"tuning      {tuned.tuning}" in doctor.report()


def test_a_folder_that_cannot_be_written_costs_one_line(tuned, home):
    (home / ".cache").touch()
    lines = tune.tune_this_gpu().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("not kept beyond this run: [Errno ")
    assert tuned.tuning != DEFAULT
    assert "tuning      none usable; run gateloop bench" in doctor.report()


def test_a_tuning_is_kept_for_its_device_and_version(home):
    tuning = Tuning(7, {"forward 32": (4, True)}, {"forward 32": (16, False)}, 1024)
    assert launch_config.stored("M9, MLX 1") is None
    tune.keep("M9, MLX 1", tuning)
    tune.keep("M9, MLX 2", replace(tuning, cores=9))
    assert launch_config.stored("M9, MLX 1") == tuning
    assert launch_config.stored("M9, MLX 2").cores == 9
    assert launch_config.stored("M9, MLX 3") is None
    assert launch_config.plan(tuning, "forward 32", 1, 100, 1) == launch_config.Plan(4, fold=True)
    assert launch_config.plan(tuning, "forward 32", 14, 100, 1) == launch_config.Plan(16)
    assert launch_config.plan(tuning, "backward 32", 1, 100, 1) == launch_config.Plan(16)


@pytest.mark.parametrize(
    "found",
    [
        "no JSON",
        '"cores": 0, "few": {}, "many": {}',
        '"cores": "7", "few": {}, "many": {}',
        '"cores": 7, "few": {}, "many": {}, "shortest_part": 1',
        '"cores": 7, "few": {"a": [5, true]}, "many": {"a": [8, true]}',
        '"cores": 7, "few": {"a": [8, true]}, "many": {}',
    ],
)
def test_a_file_that_is_broken_is_as_none(home, found):
    path = launch_config.tunings_file()
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"M9": {{{found}}}}}' if ":" in found else found)
    assert launch_config.stored("M9") is None
    tune.keep("M9", Tuning(7))
    assert json.loads(path.read_text())["M9"]["cores"] == 7


@pytest.mark.parametrize("fold", [False, True])
@pytest.mark.parametrize("segments", SEGMENTS)
def test_results_are_those_of_every_tuning(segments, fold):
    named = {launch_config.kind(name, mx.float32): (segments, fold) for name in tune.PASSES}
    for cores, length in ((1, 70), (64, 1030)):
        kernels = Kernels("metal", metal_kernel, Tuning(cores, named, named, shortest_part=128))
        case = random_case(4, length, batch=1, heads=(3, 1, 1))
        gated.check(partial(gpu.gate_loop, kernels), case, "sigmoid", shift=3)


def test_the_stopwatch_runs_what_it_is_given():
    launched = []

    def factory(name, **text):
        kernel = metal_kernel(name=name, **text)

        def call(template, **options):
            launched.append((name, dict(template)["S"]))
            if dict(template)["S"] == 4:
                raise ValueError("Thread group size")
            return kernel(template=template, **options)

        return call

    seconds = tune.stopwatch(Kernels("metal", factory))
    work = tune.Work("backward", mx.bfloat16, (1, 64, 3), launch_config.Plan(8))
    assert 0 < seconds(work) < math.inf
    assert set(launched) == {("gateloop_backward", 8)}
    assert seconds(replace(work, plan=launch_config.Plan(4))) == math.inf


def test_without_a_gpu_the_command_says_so(capsys, monkeypatch):
    for name in ("metal", "cuda"):
        entry = backends.BACKENDS[name]._replace(why_missing=lambda: "no such GPU")
        monkeypatch.setitem(backends.BACKENDS, name, entry)
    assert main(["bench", "ops", "--tune"]) == 2
    assert "--tune measures the kernels of a GPU (metal: no such GPU" in capsys.readouterr().err
    assert main(["bench", "model", "--tune"]) == 2
    assert "--tune is for bench ops" in capsys.readouterr().err
    assert "tuning" not in doctor.report()
