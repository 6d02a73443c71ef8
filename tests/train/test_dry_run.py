import pytest

from mlx_gateloop.model.lm import Model
from mlx_gateloop.train import TrainConfig, estimate, train
from mlx_gateloop.train.dry_run import FEWEST, duration
from mlx_gateloop.train.setup import num_parameters


def test_an_estimate_is_of_the_run_itself(text_file, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.dry_run.BUDGET", 0.0)
    monkeypatch.chdir(tmp_path)
    config = tiny(steps=20, optimizer__accumulate=2)
    before = sorted(tmp_path.rglob("*"))
    result = estimate(config, str(text_file))
    assert sorted(tmp_path.rglob("*")) == before
    assert result.steps == 20
    assert result.tokens_per_step == 2 * 4 * 32
    assert result.timed == FEWEST
    assert 0 < result.seconds_per_step < 60
    weights = 4 * result.parameters  # bytes; with its gradient and two moments four times that
    assert 4 * weights < result.peak_bytes < 1 << 30
    assert f"{result.parameters:,} (" in str(result)
    assert result.data.endswith("tokens of training text")

    taken = train(config, str(text_file), tmp_path / "out")
    assert taken.steps == result.steps


def test_steps_follow_the_epochs(text_file, tiny, monkeypatch):
    monkeypatch.setattr("mlx_gateloop.train.dry_run.BUDGET", 0.0)
    result = estimate(tiny(steps=None, epochs=3), str(text_file))
    per_epoch = result.steps / 3
    assert per_epoch == int(per_epoch) > 1
    assert result.epochs == pytest.approx(3)


@pytest.mark.parametrize(
    ("config", "parameters"), [("wikitext103", 114_267_217), ("125m", 123_627_217)]
)
def test_both_readings_of_the_papers_model_are_configurations(request, config, parameters):
    path = request.config.rootpath / "mlx_gateloop" / "configs" / f"{config}.yaml"
    read = TrainConfig.load(path)
    assert num_parameters(Model(read.model_args(50257))) == parameters  # never evaluated
    assert (read.epochs, read.data.batch_size, read.data.length) == (100, 16, 1024)
    optimizer = read.optimizer
    assert (optimizer.learning_rate, optimizer.state_transition_learning_rate) == (1.25e-4, 1e-4)
    assert (optimizer.betas, optimizer.weight_decay) == ((0.9, 0.98), 0.25)
    assert optimizer.warmup_steps == 5000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (59.4, "59 s"),
        (125, "2 min 5 s"),
        (3600, "1 h 0 min"),
        (86400 * 1234 + 7300, "1,234 d 2 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
