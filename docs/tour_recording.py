"""The recording that the app's tour plays: `python docs/tour_recording.py`.

An answer of an embedded model, the same without a word of the question, how long
three channels keep that word, and both models of the Memory lab on one sequence.
"""

import json
from difflib import SequenceMatcher
from typing import Any

import mlx.core as mx
import numpy as np
from shared_pages import QUESTION, ROOT, answer, kinds_of

import mlx_gateloop as gl
from mlx_gateloop.experiments.presets import PRESETS
from mlx_gateloop.io.models import load_model
from mlx_gateloop.tokenizer import token_texts
from mlx_gateloop.watch import Trace
from mlx_gateloop.watch.trace import KEPT

EMBEDDED = ROOT / "app" / "embedded_models"
OUT = ROOT / "app" / "page" / "static" / "tour.json"
MODEL = "demo"  # it has learned resets
WORD = "split"
CHANNELS = ((0, 59), (1, 68), (2, 86))  # layers and channels that keep it ever longer
LAB = ("data-controlled", "fixed")
MANY = 32  # numbers since a reset
DIGITS = 6


def record() -> dict[str, Any]:
    """Record all that the tour shows, as numbers and texts."""
    model, tokenizer = gl.load(str(EMBEDDED / MODEL))
    message = [{"role": "user", "content": QUESTION}]
    prompt = list(tokenizer.apply_chat_template(message, add_generation_prompt=True))
    answered = answer(model, tokenizer, model.make_cache(), prompt)
    ids = prompt + answered
    texts = token_texts(tokenizer, ids)
    written = texts.index(WORD)
    read = texts.index(WORD, written + 1) - 1  # where the answer's is predicted
    cache = gl.watch.without(model, prompt[:-1], [written])
    other = token_texts(tokenizer, answer(model, tokenizer, cache, prompt[-1:]))
    with gl.watch.recording(model, window=len(ids)) as recorder:
        mx.eval(model(mx.array([ids])))
    trace = recorder.trace
    retention = trace.retention(len(ids) - 1)
    return {
        "texts": texts,
        "kinds": kinds_of(texts, len(prompt)),
        "written": written,
        "read": read,
        "kept": rounded(np.sqrt(retention / retention.max()), 2),
        "sizes": [rounded(trace.magnitude(layer)[:, channel]) for layer, channel in CHANNELS],
        "forgets": rounded(forgets(trace)),
        "resets": trace.resets().tolist(),
        "nats": rounded(gl.watch.depends(model, ids, since=read)[written, 0]),
        "answers": marked(texts[len(prompt) :], other),
        "lab": lab(),
    }


def forgets(trace: Trace) -> np.ndarray:
    """Compute the share of the channels that usually remember which forget at each token.

    A token where it is a quarter is a reset: docs/resets.md.
    """
    sizes = np.concatenate([trace.magnitude(layer) for layer in range(trace.layers)], 1)
    remember = np.log(sizes).mean(0) >= np.log(KEPT)
    return (sizes[:, remember] < KEPT).mean(1)


def marked(original: list[str], other: list[str]) -> list[list[list[Any]]]:
    """Split two answers into tokens and True for those that both have, in order."""
    blocks = SequenceMatcher(None, original, other, autojunk=False).get_matching_blocks()
    both = [{block[side] + i for block in blocks for i in range(block.size)} for side in (0, 1)]
    answers = zip((original, other), both, strict=True)
    return [[[text, i in same] for i, text in enumerate(texts)] for texts, same in answers]


def lab() -> dict[str, Any]:
    """Record a sequence of the Memory lab's test set, in which fixed transitions err as usual.

    Of each model: its answers, the share of right ones in the whole test set and where more than
    `MANY` numbers count, and the mean |a| of the layer that keeps least at resets.
    """
    task = PRESETS["memory-horizon"]["running_sum"].make_task()
    inputs, targets = task.test.inputs, task.test.targets
    models = {name: load_model(EMBEDDED / "lab" / name) for name in LAB}
    answers = {name: np.array(m(mx.array(inputs)).argmax(-1)) for name, m in models.items()}
    errors = (answers["fixed"] != targets).sum(1)
    typical = int(np.abs(errors - errors.mean()).argmin())
    ids, recorded = inputs[typical], []
    for name, model in models.items():
        with gl.watch.recording(model) as recorder:
            mx.eval(model(mx.array(ids[None])))
        sizes = recorder.trace.averages().T
        least = sizes[:, ids == task.marker].mean(1).argmin()
        right = answers[name] == targets
        far = right[task.test.span > MANY]
        shares = {"right": rounded(right.mean()), "far": rounded(far.mean())}
        values = {"answers": answers[name][typical].tolist(), "sizes": rounded(sizes[least], 3)}
        recorded.append({"name": name, **shares, **values})
    shown = {"inputs": ids.tolist(), "right": targets[typical].tolist(), "reset": task.marker}
    return {**shown, "many": MANY, "models": recorded}


def rounded(values: Any, digits: int = DIGITS) -> Any:
    """Round a number, or an array to lists, to significant digits."""
    numbers = np.array(values, np.float64)
    return np.vectorize(lambda x: float(f"{x:.{digits}g}"), otypes=[float])(numbers).tolist()


def main() -> None:
    OUT.write_text(json.dumps(record(), separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main()
