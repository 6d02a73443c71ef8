"""The model card: where the weights come from, what was assumed, and the proof."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from mlx_gateloop import __version__
from mlx_gateloop.model.lm import ModelArgs

from .plan import Plan

MODEL_USE = """```sh
gateloop generate --model . --prompt "Once upon a time"
```"""
LAYER_USE = """```python
import json

import mlx_gateloop as gl

with open("config.json") as file:
    config = json.load(file)
del config["model_type"], config["mixer"]
layer = gl.GateLoop(config.pop("hidden_size"), heads=config.pop("num_heads"), **config)
layer.load_weights("model.safetensors")
```"""


@dataclass
class Card:
    """Facts of a conversion."""

    name: str
    source: str  # the checkpoint as the user named it
    plan: Plan  # its contents
    tokenizer: str  # its origin
    stored: str  # dtype of the weights, in words
    notes: list[str]  # choices among the files' contents, and warnings
    proof: list[str] = field(default_factory=list)  # reports of a verification

    def __post_init__(self) -> None:
        self._is_from_hub = not Path(self.source).expanduser().exists()
        # A path on somebody's disk tells others nothing.
        self._origin = self.source if self._is_from_hub else Path(self.source).name

    def warn(self, warning: str) -> None:
        """Print a warning and note it."""
        print(f"warning: {warning}", file=sys.stderr)
        self.notes.append(f"warning: {warning}")

    def prove(self, report: object) -> None:
        """Print a report of a verification and add it to the proof."""
        print(report)
        self.proof.append(str(report))

    def summary(self) -> str:
        """Facts for the user before the work begins."""
        kind, parameters = self.plan.source.kind, self.plan.parameters
        lines = [f"{self._origin}: {kind}, {parameters:,} parameters, {self.stored}"]
        for title, facts in self._facts().items():
            lines += [f"{title.lower()}:", *(f"  {fact}" for fact in facts)]
        return "\n".join(lines)

    def _facts(self) -> dict[str, list[str]]:
        inference = self.plan.inference
        chosen = [f"{key}={value}, set" for key, value in self.plan.settings.items()]
        facts = {
            "Inferred from the weights": inference.inferred,
            "Assumed or set": [*inference.assumed, *chosen, f"tokenizer: {self.tokenizer}"],
            "Notes": self.notes,
        }
        return {title: lines for title, lines in facts.items() if lines}

    def __str__(self) -> str:
        is_layer = not isinstance(self.plan.args, ModelArgs)
        task = "" if is_layer else "pipeline_tag: text-generation\n"
        what = "A GateLoop layer" if is_layer else "A GateLoop language model"
        base = f"base_model: {self._origin}\n" if self._is_from_hub else ""
        lists = ""
        for title, facts in self._facts().items():
            lists += "\n".join([f"\n## {title}\n", *(f"- {fact}" for fact in facts), ""])
        proof = "\n".join(self.proof) or "Not verified."
        digests = self.plan.checkpoint.hashes().items()
        hashes = "\n".join(f"| `{name}` | `{digest}` |" for name, digest in digests)
        return f"""---
library_name: mlx
{task}{base}tags:
- mlx
- gateloop
---

# {self.name}

{what}, converted from `{self._origin}` ({self.plan.source.kind}) by mlx_gateloop
{__version__}.

| | |
| --- | --- |
| parameters | {self.plan.parameters:,} |
| weights | {self.stored} |

{LAYER_USE if is_layer else MODEL_USE}
{lists}
## Parity with the source

```
{proof}
```

## Source files

| file | SHA-256 |
| --- | --- |
{hashes}
"""
