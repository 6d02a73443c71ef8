"""The model card: where the weights come from, what was assumed, and the proof."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlx_gateloop import __version__
from mlx_gateloop.model.arguments import LayerArgs

from .plan import Plan

CARD = """---
library_name: mlx
pipeline_tag: text-generation
{metadata}tags:
- mlx
- gateloop
---

# {name}

A {kind_of_model} language model, converted from `{origin}` ({kind}) by mlx_gateloop {version}.

| | |
| --- | --- |
| parameters | {parameters:,} |
| weights | {stored} |

```sh
gateloop mlx-lm generate --model . --prompt "Once upon a time"
```

## Conversion

```
{summary}
```

## Parity with the source

```
{proof}
```

## Source files

| file | SHA-256 |
| --- | --- |
{hashes}
"""


@dataclass
class Card:
    """The facts of a conversion: printed before it, and written as the model card."""

    name: str
    source: str  # the checkpoint as the user named it
    plan: Plan
    tokenizer: str  # its origin
    stored: str  # the dtype of the weights, in words
    notes: list[str]  # choices among the files' contents, and warnings
    proof: list[str] = field(default_factory=list)  # reports of a verification

    def warn(self, warning: str) -> None:
        """Print a warning and note it."""
        print(f"warning: {warning}", file=sys.stderr)
        self.notes.append(f"warning: {warning}")

    def prove(self, report: object) -> None:
        """Print a report of a verification and add it to the proof."""
        print(report)
        self.proof.append(str(report))

    @property
    def is_from_hub(self) -> bool:
        return not Path(self.source).expanduser().exists()

    @property
    def origin(self) -> str:
        """The source, without the path on somebody's disk."""
        return self.source if self.is_from_hub else Path(self.source).name

    def summary(self) -> str:
        plan, inference = self.plan, self.plan.inference
        chosen = [f"{key}={value}, set" for key, value in plan.settings.items()]
        facts = {
            "inferred from the weights": inference.inferred,
            "assumed or set": [*inference.assumed, *chosen, f"tokenizer: {self.tokenizer}"],
            "notes": self.notes,
        }
        size = f"{plan.parameters:,} parameters"
        lines = [f"{self.origin}: {plan.source.kind}, {size}, {self.stored}"]
        for title, found in facts.items():
            lines += [f"{title}:", *(f"  {fact}" for fact in found)] if found else []
        return "\n".join(lines)

    def __str__(self) -> str:
        args: Any = self.plan.args
        digests = self.plan.checkpoint.hashes().items()
        return CARD.format(
            metadata=f"base_model: {self.origin}\n" if self.is_from_hub else "",
            name=self.name,
            kind_of_model="GateLoop" if isinstance(args, LayerArgs) else args.model_type,
            origin=self.origin,
            kind=self.plan.source.kind,
            version=__version__,
            parameters=self.plan.parameters,
            stored=self.stored,
            summary=self.summary(),
            proof="\n".join(self.proof) or "Not verified.",
            hashes="\n".join(f"| `{name}` | `{digest}` |" for name, digest in digests),
        )
