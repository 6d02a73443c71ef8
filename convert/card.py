"""The model card: where the weights come from, what was taken for granted, and the proof."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mlx_gateloop import __version__

MODEL_USE = """```sh
gateloop generate --model . --prompt "Once upon a time"
```"""
LAYER_USE = """```python
import json

from mlx_gateloop.model.arguments import LayerArgs
from mlx_gateloop.model.layers import GateLoopLayer

with open("config.json") as file:
    config = json.load(file)
del config["model_type"]
layer = GateLoopLayer(LayerArgs(**config))
layer.load_weights("model.safetensors")
```"""


@dataclass
class Card:
    """What a card tells.

    Args:
        name: The model's name.
        origin: The source's file name or hub id.
        kind: Which kind of source it is.
        parameters: Their number.
        stored: In which precision the weights are written.
        tokenizer: Where the tokenizer comes from.
        hashes: SHA-256 of the source's files, by name.
        notes: What was chosen in the files, and warnings.
        inferred: Facts that the weights tell.
        assumed: Facts that they do not tell.
        parity: The report of a verification, or that there is none.
        from_hub: Whether `origin` is a hub id.
        is_layer: Whether this is one layer and no language model.
    """

    name: str
    origin: str
    kind: str
    parameters: int
    stored: str
    tokenizer: str
    inferred: list[str]
    assumed: list[str]
    hashes: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    parity: str = "Not verified."
    from_hub: bool = False
    is_layer: bool = False

    def summary(self) -> str:
        """What the user should know before the work begins."""
        lines = [f"{self.origin}: {self.kind}, {self.parameters:,} parameters, {self.stored}"]
        for title, facts in self._facts().items():
            lines += [f"{title.lower()}:", *(f"  {fact}" for fact in facts)]
        return "\n".join(lines)

    def _facts(self) -> dict[str, list[str]]:
        facts = {
            "Inferred from the weights": self.inferred,
            "Assumed or set": [*self.assumed, f"tokenizer: {self.tokenizer}"],
            "Notes": self.notes,
        }
        return {title: lines for title, lines in facts.items() if lines}

    def __str__(self) -> str:
        task = "" if self.is_layer else "pipeline_tag: text-generation\n"
        what = "A GateLoop layer" if self.is_layer else "A GateLoop language model"
        base = f"base_model: {self.origin}\n" if self.from_hub else ""
        lists = "".join(
            f"\n## {title}\n\n{_items(facts)}\n" for title, facts in self._facts().items()
        )
        hashes = "\n".join(f"| `{name}` | `{digest}` |" for name, digest in self.hashes.items())
        return f"""---
library_name: mlx
{task}{base}tags:
- mlx
- gateloop
---

# {self.name}

{what}, converted from `{self.origin}` ({self.kind}) by mlx_gateloop
{__version__}.

| | |
| --- | --- |
| parameters | {self.parameters:,} |
| weights | {self.stored} |

{LAYER_USE if self.is_layer else MODEL_USE}
{lists}
## Parity with the source

```
{self.parity}
```

## Source files

| file | SHA-256 |
| --- | --- |
{hashes}
"""


def _items(facts: Iterable[str]) -> str:
    return "\n".join(f"- {fact}" for fact in facts)
