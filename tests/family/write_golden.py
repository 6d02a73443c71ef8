"""Write golden/*.npz: logits of flash-linear-attention's own kernels, in Triton's interpreter.

pip install triton flash-linear-attention
PYTHONPATH=tests python tests/family/write_golden.py
"""

import os

os.environ |= {"TRITON_INTERPRET": "1", "FLA_DISABLE_BACKEND_DISPATCH": "1"}
import numpy as np
import torch
from fla import models
from helpers.family import CONFIGS, GOLDEN, LENGTHS, random_tokens, random_weight
from triton.runtime.autotuner import Autotuner


def run_first(self, *args, **options):
    """Run a kernel in its first configuration; the interpreter has no times to compare."""
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    chosen = self.configs[0].all_kwargs()
    if self.configs[0].pre_hook is not None:
        self.configs[0].pre_hook({**self.nargs, **options, **chosen})
    return self.fn.run(*args, **{**options, **chosen})


Autotuner.run = run_first
GOLDEN.mkdir(exist_ok=True)
for name, config in CONFIGS.items():
    prefix = config["model_type"].upper()
    arguments = {key: value for key, value in config.items() if key != "model_type"}
    made = getattr(models, f"{prefix}Config")(fuse_cross_entropy=False, **arguments)
    model = getattr(models, f"{prefix}ForCausalLM")(made).eval()
    state = {}
    for key, value in model.state_dict().items():
        newest = key.replace("g_norm_swish_gate", "g_norm")
        state[key] = torch.from_numpy(random_weight(newest, value.shape))
    if config.get("tie_word_embeddings"):
        state["lm_head.weight"] = state["model.embeddings.weight"]
    model.load_state_dict(state)
    with torch.no_grad():
        logits = {
            str(n): model(torch.from_numpy(random_tokens(n)), use_cache=False).logits.numpy()
            for n in LENGTHS
        }
    np.savez(GOLDEN / f"{name}.npz", **logits)
    print(name, {n: float(np.abs(y).max()) for n, y in logits.items()}, flush=True)
