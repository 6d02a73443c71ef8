"""Pages of recordings for the documentation: `python docs/shared_pages.py`."""

from pathlib import Path
from typing import Any

import mlx.core as mx

import mlx_gateloop as gl
from mlx_gateloop.tokenizer import token_texts
from mlx_gateloop.watch.lab import lab_page

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "shared"
EMBEDDED = ROOT / "app" / "embedded_models"
QUESTION = "What does `str.split` do?"
FORGOTTEN = {"demo": (["split"], ["str"], ["str", ".", "split"]), "demo-fixed": (["split"],)}
MAX_TOKENS = 60  # tokens of an answer


def answer(model: Any, tokenizer: Any, cache: Any, new: list[int]) -> list[int]:
    """Give the most probable answer."""
    answered: list[int] = []
    while len(answered) < MAX_TOKENS:
        token = int(model(mx.array([new]), cache)[0, -1].argmax())
        if token in tokenizer.eos_token_ids:
            break
        answered.append(token)
        new = [token]
    return answered


def kinds_of(texts: list[str], prompt: int) -> list[Any]:
    """Distinguish words from the chat template's tokens; `<|im_start|>user` has its own line."""
    kinds: list[Any] = ["prompt"] * prompt + ["answer"] * (len(texts) - prompt)
    header = False
    for index, text in enumerate(texts[:prompt]):
        header = header or text.startswith("<|")
        if header:
            kinds[index] = "special"
        header = header and "\n" not in text
    return kinds


def of_answer(name: str) -> str:
    """Make the page of an answer, and of its answers without words of the question."""
    model, tokenizer = gl.load(str(EMBEDDED / name))
    message = [{"role": "user", "content": QUESTION}]
    prompt = list(tokenizer.apply_chat_template(message, add_generation_prompt=True))
    with gl.watch.recording(model) as recorder:
        answered = answer(model, tokenizer, model.make_cache(), prompt)
    texts = token_texts(tokenizer, prompt + answered)
    forgotten = []
    for words in FORGOTTEN[name]:
        left_out = [texts.index(word) for word in words]  # their first occurrence, in the question
        cache = gl.watch.without(model, prompt[:-1], left_out)
        other = answer(model, tokenizer, cache, prompt[-1:])
        forgotten.append(gl.watch.Counterfactual(left_out, token_texts(tokenizer, other)))
    kinds, title = kinds_of(texts, len(prompt)), f"{QUESTION} Asked of the model {name}"
    return gl.watch.share(recorder.trace, texts, kinds, forgotten=forgotten, title=title)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    pages = {name: of_answer(name) for name in FORGOTTEN}
    title = "Memory Horizon: sums since the last reset"
    pages["memory-horizon"] = lab_page(EMBEDDED / "lab", title)
    for name, page in pages.items():
        (OUT / f"{name}.html").write_text(page, "utf-8")
    gl.watch.page(*gl.load("demo"), OUT / "model.html", title="Ask a GateLoop about Python")


if __name__ == "__main__":
    main()
