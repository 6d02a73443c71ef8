"""The embedded models: their files, and what they have learned."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest
from helpers.embedded import MODELS, load_embedded
from helpers.errors import refusal
from mlx_gateloop.app.generation.models import SUMS, Models
from mlx_gateloop.app.page.examples import CHAT_EXAMPLES

from benchmarks.embedded_models import completions, package
from benchmarks.embedded_models.corpus import questions
from benchmarks.embedded_models.package import MAX_BYTES, sums, thinned
from mlx_gateloop.commands.train import CONFIGS
from mlx_gateloop.generate import Sampling, stream
from mlx_gateloop.train import TrainConfig

BODIES, LEAST = 10, 6
LEARNED = {
    "str.split": "list of the substrings", "os.path.join": "pathname components",
    "list.append": "to the end of the list", "dict.get": "if key is in the dictionary",
    "random.shuffle": "in place", "math.sqrt": "square root", "len": "number of items",
}  # fmt: skip


def answer(name, question, earlier=()):
    messages = [*earlier, {"role": "user", "content": question}]
    return "".join(stream(*load_embedded(name), messages, Sampling(0.0), max_tokens=120))


@pytest.mark.parametrize("name", ["code", "demo", "demo-fixed"])
def test_every_file_is_the_one_that_was_made(name):
    directory = MODELS / name
    assert (directory / SUMS).read_text() == sums(directory)
    assert sum(file.stat().st_size for file in directory.iterdir()) <= MAX_BYTES
    assert "Python Software Foundation License" in (directory / "README.md").read_text()
    trained = TrainConfig.load(directory / "config.yaml")  # keys that are newer have their defaults
    rarer = {"checkpoint_every": 8000} if name == "code" else {}  # of the GPU's run
    assert trained.to_dict() == TrainConfig.load(CONFIGS / f"{name}.yaml", rarer).to_dict()
    records = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == trained.steps
    assert [r["step"] for r in records if r.get("best")][-1] > 0.9 * trained.steps  # stored
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < losses[0] / 2
    for key, weight in mx.load(str(directory / "model.safetensors")).items():
        if weight.ndim == 2 and key.endswith(".weight"):  # quantized, but for the gates
            is_gate = key.endswith(("gamma_proj.weight", "theta_proj.weight"))
            assert weight.dtype == mx.uint32 or (is_gate and weight.dtype == mx.float32)
    assert Models([MODELS]).load(name).model.args.vocab_size == 4096


def test_a_thinned_log_keeps_every_validation_and_the_last_record():
    records = [{"step": step, "loss": 1.0} for step in range(1000)]
    records.insert(500, {"step": 499, "validation_loss": 2.0, "best": False})
    records.append({"step": 999, "validation_loss": 1.0, "best": True})
    lines = [json.dumps(record) + "\n" for record in records]
    kept = thinned("".join(lines)).splitlines(keepends=True)
    assert {lines[500], lines[-2], lines[-1]} <= set(kept)
    assert 50 <= len(kept) <= 53


@pytest.mark.parametrize("name", ["code", "demo"])
def test_they_answer_what_they_have_learned_and_the_questions_on_the_page(name):
    for entry, words in LEARNED.items():
        text = answer(name, f"What does `{entry}` do?")
        assert text.startswith(f"`{entry}(")
        assert words in text
    known = dict(questions())
    for question in CHAT_EXAMPLES:
        entry = max(question.replace("`", "").rstrip("?").split(), key=lambda word: "." in word)
        assert answer(name, question).strip() == known[f"What does `{entry}` do?"].strip()


@pytest.mark.slow
def test_code_writes_bodies_that_python_can_parse(unread):
    functions = completions.chosen(unread, BODIES)
    written = completions.write(functions, completions.model_writer(*load_embedded("code")))
    assert sum(result.accepted for result in written) >= LEAST


def test_an_answer_does_not_depend_on_the_questions_before_it():
    earlier = [
        {"role": "user", "content": "What does `len` do?"},
        {"role": "assistant", "content": "`len(obj)`: Return the number of items in a container."},
    ]
    question = "What does `str.split` do?"
    assert answer("demo", question, earlier) == answer("demo", question)


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "log.jsonl", "model.safetensors"):
        (tmp_path / "run" / name).write_text('{"loss": 1}')
    return tmp_path / "run"


def test_a_model_is_replaced_and_one_that_is_too_large_is_not(run, tmp_path, monkeypatch):
    out = tmp_path / "models" / "demo"
    shutil.copytree(MODELS / "demo", out)

    def convert(words):
        made = Path(words[words.index("--mlx-path") + 1])
        made.mkdir()
        for name in ("model.safetensors", "tokenizer.json", "gateloop.py", "config.json"):
            (made / name).write_text('{"model_file": "new"}')

    before = sums(out)
    monkeypatch.setattr(package, "gateloop", convert)
    with monkeypatch.context() as patch:
        patch.setattr(package, "MAX_BYTES", 100)
        assert "bytes exceed 100; train a" in refusal(package.embed, [run], out)
    assert before == sums(out)
    package.embed([run], out)
    assert "new" in (out / "model.safetensors").read_text()
    assert (out / "README.md").read_bytes() == (MODELS / "demo" / "README.md").read_bytes()
    assert [(out / "config.json").read_text(), (out / "gateloop.py").exists()] == ["{}", False]
    assert [path.name for path in out.parent.iterdir()] == ["demo"]


def test_nothing_but_an_embedded_model_is_replaced(run, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("kept")
    for out, words in ((file, "a file"), (run, "holds config.yaml")):
        assert f"{words}; give a" in refusal(package.embed, [run], out)
    (run / "config.yaml").unlink()
    assert "run: no config.yaml; give the" in refusal(package.embed, [run], tmp_path / "out")
    assert sorted(path.name for path in run.iterdir()) == ["log.jsonl", "model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "run"]
