import numpy as np
import pytest
from helpers.errors import refusal
from helpers.experiments import RUNNING_SUM, cells, names, raw_results, results, tiny
from helpers.training import TINY_EXPERIMENT as TINY

from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.experiments.run import run_experiment

FILES = {"experiment.json", "results.json", "results.md", "runs"}
PICTURES = {"accuracy-over-span.png", "training-curves.png"}
TRANSITIONS = {"transitions-data_controlled.png", "transitions-fixed.png"}


def test_every_model_and_seed_is_trained_and_compared(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(), out, command="gateloop memory-horizon --preset running_sum")
    assert names(out) == FILES | PICTURES | TRANSITIONS
    assert names(out / "runs") == {f"{t}-{s}" for t in ("data_controlled", "fixed") for s in (0, 1)}
    assert "| runs ended " in (out / "results.md").read_text()
    for result in results(out):
        asked, right = np.array(result["asked_by_span"]), np.array(result["right_by_span"])
        assert asked.sum() == 8 * 12
        assert result["accuracy"] == right.sum() / asked.sum()
        assert result["steps"] == result["total_steps"] == 6
        at, elsewhere = (np.array(result["magnitudes"][k]) for k in ("at_marker", "elsewhere"))
        assert at.shape == elsewhere.shape == (2, 8)
        assert len(result["magnitudes"]["resetting"]) == 2
        assert np.allclose(at, elsewhere, atol=1e-3) == (result["model"] == "fixed")
    configs = [
        (out / "runs" / name / "config.yaml").read_text().splitlines()
        for name in ("data_controlled-1", "fixed-1")
    ]
    different = [pair for pair in zip(*configs, strict=True) if pair[0] != pair[1]]
    assert different == [("  transition: data_controlled", "  transition: fixed")]
    text = (out / "results.md").read_text()
    assert "`gateloop memory-horizon --preset running_sum`" in text
    assert "- over fixed: " in text
    assert "## Channels that reset" in text
    tree = raw_results(out)
    assert tree["models"] == {model: {"state_size": 8} for model in ("data_controlled", "fixed")}
    for curves in tree["curves"].values():
        assert [[step for step, _ in curve] for curve in curves] == [[3, 6], [3, 6]]
    for picture in PICTURES | TRANSITIONS:
        assert f"({picture})" in text
        assert (out / picture).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.usefixtures("without_pictures")
def test_runs_go_on_with_the_weights_of_another_experiment(tmp_path):
    before, after, new = tmp_path / "a", tmp_path / "b", {"models": ["fixed", "gla"], "seeds": 1}
    run_experiment(tiny(**new), before)
    new |= {"weights": str(before), "optimizer__learning_rate": 1e-9}
    run_experiment(tiny(**new), after)
    first, then = ([x["loss"] for x in results(out)] for out in (before, after))
    assert then == pytest.approx(first, rel=1e-6)
    assert raw_results(after)["models"] == raw_results(before)["models"]
    for change, words in (
        ({"model__conv_size": 3}, "fixed-0: model.conv_size None there, 3 here; give the same"),
        ({"task__max_output": 9}, "fixed-0: model.num_outputs 5 there, 10 here"),
        ({"seeds": 2}, "no finished run in "),
        ({"sequence_chunk": 6}, "sequence_chunk: must be None with weights to start from"),
    ):
        assert words in refusal(run_experiment, tiny(**new | change), tmp_path / "new")


@pytest.mark.usefixtures("without_pictures")
def test_a_run_out_of_patience_is_finished(tmp_path):
    experiment = tiny(seeds=1, models=["fixed"], patience=1, eval_every=1, steps=400)
    experiment = experiment.changed_by({"optimizer.learning_rate": 0.3})
    run_experiment(experiment, tmp_path / "out")
    (result,) = results(tmp_path / "out")
    assert result["finished"]
    assert result["steps"] < result["total_steps"] == 400
    assert "**of" not in (tmp_path / "out" / "results.md").read_text()
    file = tmp_path / "out" / "runs" / "fixed-0" / "test.json"
    before = file.stat().st_mtime_ns
    run_experiment(experiment, tmp_path / "out", resume=True)
    assert file.stat().st_mtime_ns == before


@pytest.mark.usefixtures("without_pictures")
def test_models_of_the_family_are_trained_beside_ours(tmp_path):
    models = ("data_controlled", "gla", "hgrn2")
    plan = tiny("recall", "small", seeds=1, models=models, equal=True)
    run_experiment(plan, tmp_path / "out")
    assert names(tmp_path / "out") == FILES
    assert "Channels that reset" not in (tmp_path / "out" / "results.md").read_text()
    assert [result["model"] for result in results(tmp_path / "out")] == [*models]
    ours, *others = (result["parameters"] for result in results(tmp_path / "out"))
    assert others == pytest.approx([ours] * 2, rel=0.02)
    gated = plan.changed_by({"model.output_gate": True})
    assert "gla has no model.output_gate" in refusal(gated.config, plan.make_task(), "gla", 0)
    alone = tiny("recall", "small", seeds=1, models=["gla"], model__expand_k=1)
    run_experiment(alone, tmp_path / "alone")
    assert names(tmp_path / "alone") == FILES


@pytest.mark.usefixtures("without_pictures")
def test_models_of_a_text_are_compared_by_their_bits(tmp_path):
    assert "draws: expected 1 to 9" in refusal(PRESETS["text"]["small"].changed_by, draws=10)
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("".join(f"{number}, " for number in range(1000)))
    settings = {key: value for key, value in TINY.items() if not key.startswith("task.")}
    settings |= {"task.file": str(text), "task.length": 12}
    run_experiment(PRESETS["text"]["small"].changed_by(settings, seeds=1), out)
    report = (out / "results.md").read_text()
    (ours, fixed) = (result["loss"] / np.log(2) for result in results(out))
    assert f"- over fixed: {fixed - ours:+.3f} (by seed: " in report
    assert "Leads of the data-controlled model in bits per byte:" in report
    header, _, row, *_ = cells(report.partition("## Test results")[2])
    assert row[header.index("bits per byte by seed")] == f"{ours:.3f}"


@pytest.mark.slow
def test_softmax_without_positions_has_no_transitions_to_show(tmp_path):
    out = tmp_path / "out"
    run_experiment(tiny(seeds=1, models=["softmax"], steps=3), out)
    assert names(out) == FILES | PICTURES
    assert results(out)[0]["magnitudes"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("model", "low", "high"), [("data_controlled", 0.85, 1), ("fixed", 0, 0.65)]
)
def test_the_bar(tmp_path, model, low, high):
    """A model that can't decide to forget doesn't learn a sum since the last reset."""
    short = RUNNING_SUM.changed_by({"steps": 250, "task.length": 32}, seeds=1, models=[model])
    run_experiment(short, tmp_path / "out")
    (result,) = results(tmp_path / "out")
    assert low <= result["accuracy"] <= high
    assert any(result["magnitudes"]["resetting"]) == (model == "data_controlled")
