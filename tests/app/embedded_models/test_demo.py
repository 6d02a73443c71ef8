"""The embedded models: their files, and what they have learned."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
import yaml
from helpers.embedded import MODELS, load_embedded
from mlx.utils import tree_flatten
from mlx_gateloop.app.generation.models import SUMS, Models
from mlx_gateloop.app.page.examples import CHAT_EXAMPLES

from benchmarks.embedded_models import completions, package
from benchmarks.embedded_models.corpus import questions
from benchmarks.embedded_models.package import MOST_BYTES, sums, thinned
from mlx_gateloop.commands.train import CONFIGS
from mlx_gateloop.errors import InputError
from mlx_gateloop.generate import Sampling, stream
from mlx_gateloop.io import files
from mlx_gateloop.train import TrainConfig

NAMES = ("code", "demo", "demo-fixed")
BODIES, LEAST = 10, 6
LEARNED = {
    "str.split": "list of the substrings",
    "os.path.join": "pathname components",
    "list.append": "to the end of the list",
    "dict.get": "if key is in the dictionary",
    "random.shuffle": "in place",
    "math.sqrt": "square root",
    "len": "number of items",
}


@pytest.fixture(scope="module", params=NAMES)
def directory(request):
    return MODELS / request.param


@pytest.fixture(scope="module")
def demo():
    return load_embedded("demo")


@pytest.fixture(scope="module", params=("code", "demo"))
def learned(request):
    return load_embedded(request.param)


def answer(loaded, question, earlier=(), **sampling):
    pieces = stream(
        *loaded,
        [*earlier, {"role": "user", "content": question}],
        Sampling(**{"temperature": 0.0} | sampling),
        max_tokens=100,
    )
    return "".join(pieces)


def test_every_file_is_the_one_that_was_made(directory):
    assert (directory / SUMS).read_text() == sums(directory)


def test_the_app_loads_it_and_refuses_a_changed_file(directory, tmp_path):
    assert Models([MODELS]).load(directory.name).model.args.vocab_size == 4096
    changed = shutil.copytree(directory, tmp_path / "changed")
    config = changed / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(InputError, match="differs from SHA256SUMS"):
        Models([tmp_path]).load("changed")


def test_it_is_small(directory):
    assert sum(file.stat().st_size for file in directory.iterdir()) <= MOST_BYTES


def test_it_has_a_card_with_the_licence_and_the_command(directory):
    card = (directory / "README.md").read_text()
    assert "Python Software Foundation License" in card
    assert f"gateloop train --config {directory.name}" in card


def test_it_was_trained_with_the_configuration_in_configs(directory):
    preset = CONFIGS / f"{directory.name}.yaml"
    trained = TrainConfig.load(directory / "config.yaml")  # keys that are newer have their defaults
    assert trained.to_dict() == TrainConfig.load(preset).to_dict()


def test_the_log_ends_with_the_validation_of_the_weights(directory):
    records = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    steps = yaml.safe_load((directory / "config.yaml").read_text())["steps"]
    assert records[-1]["step"] == steps
    assert records[-1]["best"] is True
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < losses[0] / 2


def test_only_the_state_transitions_are_not_quantized(directory):
    weights = mx.load(str(directory / "model.safetensors"))
    matrices = {
        name.removesuffix(".weight"): weight.dtype
        for name, weight in weights.items()
        if name.endswith(".weight") and weight.ndim == 2
    }
    transitions = {name for name, dtype in matrices.items() if dtype == mx.float32}
    assert all(name.split(".")[-1] in ("gamma_proj", "theta_proj") for name in transitions)
    assert set(matrices.values()) <= {mx.float32, mx.uint32}


def test_demo_is_data_controlled_and_has_3_to_5_million_parameters(demo):
    model, _ = demo
    assert model.args.transition == "data_controlled"
    count = sum(p.size for _, p in tree_flatten(model.parameters()))
    assert 3e6 <= count <= 5e6


def test_the_fixed_one_loads_and_reads_the_same_tokens():
    model, tokenizer = load_embedded("demo-fixed")
    assert model.args.transition == "fixed"
    texts = [(MODELS / name / "tokenizer.json").read_text() for name in ("demo", "demo-fixed")]
    assert texts[0] == texts[1]
    assert answer((model, tokenizer), "What does `str.split` do?").strip()


def test_a_thinned_log_keeps_every_validation_and_the_last_record():
    records = [{"step": step, "loss": 1.0} for step in range(1000)]
    records.insert(500, {"step": 499, "validation_loss": 2.0, "best": False})
    records.append({"step": 999, "validation_loss": 1.0, "best": True})
    lines = [json.dumps(record) + "\n" for record in records]
    kept = thinned("".join(lines)).splitlines(keepends=True)
    assert {lines[500], lines[-2], lines[-1]} <= set(kept)
    assert 50 <= len(kept) <= 53


def test_they_answer_what_they_have_learned(learned):
    for name, words in LEARNED.items():
        text = answer(learned, f"What does `{name}` do?")
        assert text.startswith(f"`{name}(")
        assert words in text


def test_they_answer_the_questions_on_the_page(learned):
    known = dict(questions())
    for question in CHAT_EXAMPLES:
        name = question.replace("`", "").rstrip("?").split()
        name = max(name, key=lambda word: "." in word)
        assert answer(learned, question).strip() == known[f"What does `{name}` do?"].strip()


@pytest.mark.slow
def test_code_writes_bodies_that_python_can_parse(unread):
    functions = completions.chosen(unread, BODIES)
    written = completions.write(functions, completions.model_writer(*load_embedded("code")))
    assert sum(result.accepted for result in written) >= LEAST


def test_an_answer_does_not_depend_on_the_questions_before_it(demo):
    earlier = [
        {"role": "user", "content": "What does `len` do?"},
        {"role": "assistant", "content": "`len(obj)`: Return the number of items in a container."},
    ]
    question = "What does `str.split` do?"
    assert answer(demo, question, earlier) == answer(demo, question)


def test_a_model_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    run, out = tmp_path / "run", tmp_path / "models" / "demo"
    run.mkdir()
    (run / "config.yaml").write_text("steps: 1\n")
    (run / "log.jsonl").write_text('{"loss": 1}\n')
    (run / "model.safetensors").write_text("trained")
    shutil.copytree(MODELS / "demo", out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def convert(words):
        made = Path(words[words.index("--mlx-path") + 1])
        made.mkdir()
        (made / "model.safetensors").write_text("new")

    def refuse(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "gateloop", convert)
    with monkeypatch.context() as patch:
        patch.setattr(package, "MOST_BYTES", 100)
        with pytest.raises(InputError, match=r"demo: [\d,]+ bytes exceed 100; train a"):
            package.embed(run, out)
    assert before == {file.name: file.read_bytes() for file in [*out.iterdir()]}
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", refuse)
        patch.setattr(files, "_replace", refuse)
        with pytest.raises(KeyboardInterrupt):
            package.embed(run, out)
    assert before == {file.name: file.read_bytes() for file in [*out.iterdir()]}
    package.embed(run, out)
    assert (out / "model.safetensors").read_text() == "new"
    assert (out / "README.md").read_bytes() == before["README.md"]
    assert [path.name for path in out.parent.iterdir()] == ["demo"]


def test_nothing_but_an_embedded_model_is_replaced(tmp_path):
    run, folder, file = tmp_path / "run", tmp_path / "notes", tmp_path / "notes.txt"
    for path in (run, folder):
        path.mkdir()
    with pytest.raises(InputError, match=r"run: no config.yaml; give the folder of a training run"):
        package.embed(run, tmp_path / "out")
    for path in (run / "config.yaml", run / "log.jsonl", run / "model.safetensors", file):
        path.write_text("kept")
    (folder / "notes.txt").write_text("kept")
    for out, words in ((file, "a file"), (folder, "holds notes.txt"), (run, "holds config.yaml")):
        with pytest.raises(InputError, match=f"{words}; give a"):
            package.embed(run, out)
    assert {path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == {"kept"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "notes.txt", "run"]
