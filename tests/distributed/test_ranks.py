"""Exchanges and training over 2 and 4 ranks on loopback, beside one process."""

import math
import os
import signal
import threading

import mlx.core as mx
import pytest
from helpers.cases import first
from helpers.training import TEXT
from helpers.waiting import wait_for

from mlx_gateloop.configuration import read_json_lines
from mlx_gateloop.distributed.rank import TimeLimit
from mlx_gateloop.train.checkpoint import read_header


def values(out, key):
    return [record[key] for record in read_json_lines(out / "log.jsonl") if key in record]


def state_of(out):
    arrays = mx.load(str(out / "checkpoints" / "last.safetensors"))
    return {name: array for name, array in arrays.items() if not name.startswith("random")}


@pytest.fixture(scope="module")
def alone(nursery, run, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out"
    assert nursery.run(1, *run, out) == [0]
    return out


SIZES = first(1, [2, 4])


@pytest.mark.parametrize("size", SIZES)
def test_exchanges(nursery, size):
    answers = nursery.answers(size, "exchanges")
    distances = answers[0]["gradients"]
    assert len(distances) == 6
    for name, distance in distances.items():
        least, most = (1e-6, 0.02) if "bfloat16" in name else (-1, 1e-6)
        assert least < distance < most * size, name
    for rank, answer in enumerate(answers):
        assert answer["gathered"] == [{"rank": other, "text": "ä" * other} for other in range(size)]
        assert answer["first"] == [0, math.inf]
        assert answer["sum"] == [number * size * (size + 1) // 2 for number in range(5)]
        assert answer["any"] == [True, False]
        assert answer["part"] == [rank * 7 // size, (rank + 1) * 7 // size]
        assert answer["gradients"] == distances, "equal on all ranks"
        weights, text, same = answer["messages"]
        assert "rank 1 on desk1 differs from rank 0 on desk0 in its weights: " in weights
        assert "in its text: " in text
        assert same is None


@pytest.mark.parametrize("sequence", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_training_is_that_of_one_process(nursery, run, alone, tmp_path, size, sequence):
    """Losses, gradients, validations and weights; 6 sequences of 32 tokens are divided."""
    out = tmp_path / "out"
    words = [*run, out, "--set", f"sequence_parallel={sequence}"]
    assert nursery.run(size, *words) == [0] * size, nursery.said(0)
    for key in ("loss", "validation_loss", "gradient_norm"):
        assert values(out, key) == pytest.approx(values(alone, key), rel=1e-6)
    ours, theirs = state_of(out), state_of(alone)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert mx.allclose(array, theirs[name], rtol=1e-4, atol=1e-6), name
    names = {path.relative_to(out) for path in out.rglob("*")}
    assert names == {path.relative_to(alone) for path in alone.rglob("*")}


@pytest.mark.parametrize("size", SIZES)
def test_a_sequence_over_ranks_is_that_on_one(nursery, size):
    """y and all gradients, in every form; the parts have different lengths."""
    for answer in nursery.answers(size, "sequences", sequence=size):
        assert max(answer.values()) < 1e-5, answer


@pytest.mark.parametrize("size", SIZES)
def test_memory_of_a_rank_is_that_of_its_part(nursery, run, tmp_path, size):
    """Peak memory of MLX's arrays, beside one process at the rank's part of the length."""
    (tmp_path / "text.txt").write_text(TEXT[:60000])
    words = ["peak", run[run.index("--config") + 1], tmp_path / "text.txt"]
    alone = nursery.answers(1, *words, 2048)[0]
    shared = nursery.answers(size, *words, 2048 * size, sequence=size)
    assert max(shared) < 1.2 * alone, (shared, alone)


def test_ranks_that_differ_refuse_to_start(nursery, run, tmp_path):
    line = "error: rank 1 on desk1 differs from rank 0 on desk0 in its config.seed: 1, not 0"
    assert nursery.answers(2, "another_seed", *run, tmp_path / "out") == [[2, line]] * 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "settings", "message"), first(1, [
    (2, "data.batch_size=1", "data.batch_size: 1 sequences cannot be divided among 2 ranks"),
    (4, "data.packed=false data.length=2600 sequence_parallel=2", "the text has 3 pieces for 2 "),
    (2, "sequence_parallel=3", "sequence_parallel: 3 ranks for a sequence do not divide"),
    (2, "model.mixer=softmax start=published sequence_parallel=2", "sequence_parallel: expected"),
    (2, "model.conv_size=4 sequence_parallel=2", "sequence_parallel: expected 1 with a convol"),
]))  # fmt: skip
def test_runs_that_cannot_be_divided(nursery, run, tmp_path, size, settings, message):
    words = [word for setting in settings.split() for word in ("--set", setting)]
    assert nursery.run(size, *run, tmp_path / "out", *words) == [2] * size
    assert nursery.said(0).startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_resumed_on_other_numbers_of_ranks(nursery, run, alone, tmp_path):
    """Steps 1 to 6 on two ranks, to 12 on one, to 20 on four: the steps of one process."""
    out, resume = tmp_path / "out", []
    for size, stop_at, code in ((2, 6, 130), (1, 12, 130), (4, 20, 0)):
        answers = nursery.answers(size, "stopped", stop_at, *run, out, *resume)
        assert [answer[0] for answer in answers] == [code] * size
        resume = ["--resume"]
    assert values(out, "step") == values(alone, "step")
    for key in ("loss", "gradient_norm"):
        assert values(out, key) == pytest.approx(values(alone, key), rel=1e-6)


@pytest.mark.parametrize(
    ("sign", "reason"),
    first(1, [(signal.SIGKILL, "lost"), (signal.SIGSTOP, "no answer of the other ranks")]),
)
def test_a_rank_that_dies_or_stops_ends_the_others(nursery, run, tmp_path, sign, reason):
    out = tmp_path / "out"
    limit = 120 if sign == signal.SIGKILL else 15  # a step of a busy machine is shorter
    pids = nursery.start(2, *run, out, "--set", "steps=100000", limit=limit)
    log = out / "log.jsonl"
    wait_for(lambda: log.exists() and len(read_json_lines(log)) >= 7)
    os.kill(pids[1], sign)
    wait_for(lambda: nursery.said(0))
    os.kill(pids[1], signal.SIGKILL)
    assert nursery.wait() == [1, -signal.SIGKILL]
    assert reason in nursery.said(0)
    assert read_header(out / "checkpoints" / "last.safetensors")[0].step >= 5
    words = [len(read_json_lines(log)) + 2, *run, out, "--set", "steps=100000", "--resume"]
    assert nursery.answers(1, "stopped", *words)[0][0] == 130


def test_a_rank_that_dies_in_an_exchange_beside_computing(nursery):
    assert nursery.run(2, "lost_beside") == [0, -signal.SIGKILL]
    assert "a rank was lost in the exchange of gradients" in nursery.said(0)


def test_a_wait_is_ended_from_another_thread():
    named, ended = [], threading.Event()
    with TimeLimit(0.1, lambda name: (named.append(name), ended.set()))("exchange of losses"):
        assert ended.wait(60)
    assert named[0] == "exchange of losses"
