import itertools
import re
import string
from pathlib import Path

import mlx.core as mx
import pytest
from helpers.errors import refusal

from mlx_gateloop.train import TrainConfig

PAIRS = list(itertools.pairwise(string.ascii_lowercase))
CONFIGS = sorted((Path(__file__).parents[2] / "mlx_gateloop" / "configs").glob("*.yaml"))


def written(folder, text):
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_values_come_from_the_file_and_flags_win(tmp_path):
    text = "optimizer: {learning_rate: 1e-3, betas: [0.8, 0.9]}\nepochs: 2\ndata:\n"
    path = written(tmp_path, text)
    config = TrainConfig.load(path, {"data.length": 64, "steps": 7, "model.hidden_size": 24})
    assert config.optimizer.learning_rate == 0.001
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.data.length == 64
    assert (config.steps, config.epochs) == (7, None)
    assert config.model_args(vocab_size=99).hidden_size == 24
    assert config.model_args(vocab_size=99).vocab_size == 99


def test_without_a_length_the_run_is_one_epoch():
    config = TrainConfig.load(None, {"optimizer.accumulate": 4})
    assert config.epochs == 1
    assert config.total_steps(batches_per_epoch=100) == 25


def test_a_spread_start_sets_half_lives_the_input_and_the_rate():
    chosen = {"model": {"hidden_size": 50}, "start": "spread", "data.length": 400}
    config = TrainConfig.load(None, chosen)
    args = config.model_args(vocab_size=9)
    assert (config.start, args.longest_half_life, args.input_scale) == ("spread", 40, True)
    rates = config.optimizer.learning_rate, config.optimizer.state_transition_learning_rate
    assert rates == pytest.approx((0.03, 0.015))
    chosen = {"start": "spread", "model.longest_half_life": 7, "model.input_scale": False}
    chosen["optimizer.state_transition_learning_rate"] = 1e-5
    config = TrainConfig.load(None, chosen)
    args = config.model_args(vocab_size=9)
    assert (config.start, args.longest_half_life, args.input_scale) == ("spread", 7, False)
    assert config.optimizer.state_transition_learning_rate == 1e-5


@pytest.mark.parametrize(("model", "start"), [
    ({}, "spread"), ({"input_gate": "tied"}, "spread"), ({"gate": "real"}, "spread"),
    ({"preset": "125m"}, "published"), ({"preset": "memory_horizon"}, "published"),
    ({"model_type": "gla"}, "published"),
], ids=str)  # fmt: skip
def test_new_models_of_ours_begin_spread(model, start):
    config = TrainConfig.load(None, {"model": model})
    assert config.start == start
    is_scaled = None if start == "published" else "input_gate" not in model
    assert config.model.get("input_scale") == is_scaled


CONSTANT = [
    {"transition": "lru"}, {"transition": "retnet", "num_heads": 2}, {"gate": "polar_abs"},
    {"mixer": "softmax", "transition": "none"}, {"bias": False},
]  # fmt: skip


@pytest.mark.parametrize("model", CONSTANT, ids=str)
def test_transitions_that_cannot_be_spread_are_refused(model):
    model = {"hidden_size": 8, **model}
    line = refusal(TrainConfig.load, None, {"model": model, "start": "spread"})
    assert re.search("start: spread is for polar or real gates.*published", line)
    config = TrainConfig.load(None, {"model": model})
    optimizer = config.optimizer
    assert config.start == "published"
    assert optimizer.learning_rate == optimizer.state_transition_learning_rate == 1 / 8


@pytest.mark.parametrize(("text", "words"), [
    ("start: slow", "start must be 'spread' or 'published', got 'slow'"),
    ("optimizer: {learning_rat: 1}", "learning_rat .did you mean learning_rate.*betas"),
    ("model: {hiden_size: 3}", "model.hiden_size .did you mean hidden_size.*preset"),
    ("model: {preset: 125M}", "preset '125M' .did you mean 125m"),
    ("model: {dropout: 0.1}\ncheckpoint_blocks: true", "checkpoint_blocks needs model.dropout"),
    ("model: {model_type: gla}\ncarry_state: true", "carry_state needs model_type gateloop"),
    ("model: {dropout: 0.1}\nsequence_chunk: 8", "sequence_chunk needs model_type"),
    ("data: {packed: false}\ncarry_state: true", "carry_state needs data.packed: true"),
    ("sequence_chunk: 8\ncheckpoint_blocks: true", "checkpoint_blocks: no use beside"),
    ("optimizer: {knots: [[0, 0], [9, 1], [5, 0]]}", "knots: the steps must rise"),
    ("data: {length: 0}", "data.length must .*greater than 0, got 0"),
    ("data: {length: 3000000000}", "data.length must be less than 2147483648"),
    ("optimizer: {betas: [0.9, 1.0]}", "optimizer.betas.1 must be less than 1, got 1.0"),
    ("steps: 3\nepochs: 1", "exactly one of steps and epochs"),
    ("epochs: 1e308", "epochs must be less than 2147483648"),
    ("tokenizer: {kind: pretrained}", "tokenizer.path and"),
    ("- a\n- b", "expected `key: value` lines, got list"),
    ("seed: 3\n\tsteps: 5", "not readable YAML: line 2: .*cannot start any token$"),
    ("seed: 3\ndata:\n  length: 8\nseed: 5", "line 4: the key 'seed' is there twice"),
    ("data: {length: 8, length: 9}", "line 1: the key 'length' is there twice"),
    ("[" * 1000, "not readable YAML: nested too deeply"),
    (f"seed: {'9' * 5000}", "not readable YAML: Exceeds the limit"),
    ("seed: !!python/name:os.system", "line 1: could not determine a constructor"),
    ("1: 2", "the key 1 is not a string"), ('"\\reval_every": 1', "unknown key eval_every "),
], ids=lambda value: value[:30])  # fmt: skip
def test_what_is_wrong_is_named_in_one_line_with_the_file(tmp_path, text, words):
    path = written(tmp_path, text)
    line = refusal(TrainConfig.load, path)
    assert line.startswith(str(path))
    assert re.search(words, line)


@pytest.mark.parametrize("use", ["steps: *z", "model: *z", "model: {preset: *z}", "*z : 1", ""])
def test_aliases_that_would_unfold_to_a_billion_items_are_one_line(tmp_path, use):
    lists = [f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]" for before, one in PAIRS]
    refusal(TrainConfig.load, written(tmp_path, "\n".join(["a: &a [ha]", *lists, use])))


def test_missing_and_binary_files(tmp_path):
    missing = refusal(TrainConfig.load, tmp_path / "none.yaml")
    assert "No such file or directory; give a YAML file" in missing
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    assert "not readable YAML" in refusal(TrainConfig.load, tmp_path / "binary.yaml")


def test_overrides_of_sections():
    overrides = {"model": {"hidden_size": 16}, "model.dropout": 0.1, "start": "published"}
    assert TrainConfig.load(None, overrides).model == {"hidden_size": 16, "dropout": 0.1}
    assert overrides["model"] == {"hidden_size": 16}, "stays as it was given"
    assert "steps is not a section" in refusal(TrainConfig.load, None, {"steps": 3, "steps.a": 4})


def test_weights_take_the_configuration_of_their_run(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gateloop"}')
    weights = {"weights": str(tmp_path)}
    assert TrainConfig.load(written(tmp_path, "start: spread"), weights).start == "published"
    assert "start: must be" in refusal(TrainConfig.load, None, weights | {"start": "spread"})


def test_vocabulary_must_hold_the_tokenizer():
    config = TrainConfig.load(None, {"model.vocab_size": 100})
    assert config.model_args(vocab_size=90).vocab_size == 100
    assert "vocab_size 100 is below the tokenizer's 101" in refusal(config.model_args, 101)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_valid(path):
    config = TrainConfig.load(path)
    assert config.model_args(vocab_size=256).hidden_size > 0
    assert isinstance(getattr(mx, config.dtype), mx.Dtype)
    assert re.match("#", path.read_text()), "says in its first line what it is"


def test_paper_hyperparameters():
    """Paper, appendix "WikiText103 hyperparameters"."""
    assert {"wikitext103", "125m"} <= {path.stem for path in CONFIGS}
    for name in ("wikitext103", "125m"):
        config = TrainConfig.load(CONFIGS[0].with_name(f"{name}.yaml"))
        optimizer = config.optimizer
        assert (config.epochs, config.data.batch_size, config.data.length) == (100, 16, 1024)
        assert optimizer.learning_rate == 0.000125
        assert optimizer.state_transition_learning_rate == 0.0001
        assert (optimizer.betas, optimizer.weight_decay) == ((0.9, 0.98), 0.25)
        assert optimizer.state_transition_weight_decay == 0
        assert optimizer.warmup_steps == 5000
        args = config.model_args(vocab_size=50257)
        assert (args.num_hidden_layers, args.hidden_size, args.intermediate_size) == (12, 624, 1872)
        assert args.output_gate == (name == "125m")
