"""The training configuration: one strict YAML file, and overrides from flags."""

from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from mlx_gateloop.configuration import among, first_problem, read_json, read_yaml
from mlx_gateloop.errors import InputError, shortened, shown
from mlx_gateloop.model.lm import PRESETS
from mlx_gateloop.model.registered import MODELS, module

_strict = ConfigDict(extra="forbid", allow_inf_nan=False)
Count = Annotated[int, Field(strict=True, gt=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(config=_strict)
class TokenizerConfig:
    """The tokenizer of a run: trained on its text, one token per byte, or read from `path`."""

    kind: Literal["sentencepiece", "bytes", "pretrained"] = "sentencepiece"
    vocab_size: Count = 4096  # if the tokenizer is trained
    path: str | None = None  # a directory or hub name, or a sentencepiece `.model` file

    @model_validator(mode="after")
    def _path_belongs_to_pretrained(self) -> "TokenizerConfig":
        if (self.kind == "pretrained") != (self.path is not None):
            raise ValueError("tokenizer.path and tokenizer.kind: pretrained need each other")
        return self


@dataclass(config=_strict)
class DataConfig:
    """The batches of a text: `batch_size` windows of `length` tokens, on all ranks together."""

    length: Count = 256
    batch_size: Count = 8
    validation_fraction: float = Field(default=0.1, gt=0, lt=1)  # share of the text
    loss_on: Literal["all", "answers"] = "all"  # tokens, or the answers of conversations
    reset_at_documents: bool = True  # forget the state at each document's first token, a = 0
    packed: bool = True  # False: a row begins a document or a piece, as mlx-lm's models need it


@dataclass(config=_strict)
class OptimizerConfig:
    """MLX's optimizer with the paper's groups (appendix "WikiText103 hyperparameters").

    Muon takes the matrices of blocks, AdamW then the state transition (its projections or vectors),
    embeddings, head and vectors. A rate of None is 1 / hidden_size, 1.5 times that with
    `start: spread`, 0.001 with `weights`; a tenth of these for Lion.
    """

    name: Literal["adamw", "lion", "adafactor", "muon"] = "adamw"
    learning_rate: PositiveFloat | None = None  # peak of the cosine
    # None takes `learning_rate`, or half of it with `start: spread`.
    state_transition_learning_rate: PositiveFloat | None = None
    # Rate of theta, the phases, as a share of `learning_rate`; None takes that of the transition.
    phase_share: PositiveFloat | None = None
    betas: tuple[Share, Share] = (0.9, 0.98)  # AdamW's and Lion's
    # Decoupled, for matrices outside the state transition. None lets weights average the updates of
    # an epoch, at least of 100 steps, and is 0 for Muon and for weights that were learned before.
    weight_decay: NonNegativeFloat | None = None
    state_transition_weight_decay: NonNegativeFloat = 0.0
    warmup_steps: NonNegativeInt | None = None  # linear; None is a tenth of the steps
    # Steps and factors of the rates there, linear between, in place of warm-up and cosine.
    knots: list[tuple[NonNegativeInt, NonNegativeFloat]] | None = None
    clip_norm: PositiveFloat = 1.0  # largest global norm of a gradient
    accumulate: Count = 1  # batches per step; all targets have the same weight
    # For the gradients that ranks exchange; bfloat16 halves the bytes, and rounds sums to 8 bits.
    exchange_dtype: Literal["float32", "bfloat16"] = "float32"


@dataclass(config=_strict)
class TrainConfig:
    """The configuration of a run; the same config, text and machine give the same weights."""

    # `preset` (a name of `lm.PRESETS`) and any field of `ModelArgs` over it, or `model_type` (gla,
    # hgrn, hgrn2, ssd) and fields of its `ModelArgs`; the tokenizer gives `vocab_size` by default.
    model: dict[str, Any] = Field(default_factory=lambda: {"preset": "demo"})
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    steps: Count | None = None  # in the whole run; give exactly one of `steps` and `epochs`
    epochs: float | None = Field(default=None, gt=0, lt=2**31)  # passes over the training text
    log_every: Count = 10  # steps between records of log.jsonl
    eval_every: Count = 100  # steps between validations; the last step always validates
    sample_tokens: NonNegativeInt = 40  # length of the sample that each validation generates
    checkpoint_every: Count = 100  # steps; the last step always saves
    patience: Count | None = None  # validations without improvement before the run stops
    # A model directory to start from, of `gl.save`, `gateloop convert` or mlx-lm: its shape,
    # weights and tokenizer in place of `model` and `tokenizer`.
    weights: str | None = None
    # Learn adapters of this rank, and no weights.
    lora_rank: Annotated[int, Field(strict=True, gt=0, le=4096)] | None = None
    seed: int = Field(default=0, ge=0, lt=2**32)  # for weights, order of the data and dropout
    # Factor on the initial weights of linear layers, whose variance is 1 / inputs; 3 ** -0.5 gives
    # the variance of PyTorch's. State transitions keep theirs.
    initial_scale: PositiveFloat = 1.0
    # Initial state transitions: the paper's, or half-lives (to a tenth of `data.length`) and phases
    # spread evenly in their logarithm and a scaled input (`model.longest_half_life` and
    # `model.input_scale`), learned at half the rate; these three may be set one by one.
    # None spreads where the model has such transitions and is not a preset of the paper's.
    start: Literal["spread", "published"] | None = None
    # For the forward and backward pass and the saved weights; the optimizer's weights are always
    # float32, as bfloat16 would round small updates away.
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    checkpoint_blocks: bool = False  # recompute each block in the backward pass, store only inputs
    # Ranks of `gateloop launch` that share each sequence; their number must be a multiple of it.
    sequence_parallel: Count = 1
    # Tokens of a sequence in memory at a time; the backward pass computes each part again from the
    # state before it. None is the whole sequence.
    sequence_chunk: Count | None = None
    carry_state: bool = False  # a window begins with the state after the one before, as a constant

    @model_validator(mode="after")
    def _resolve_weights(self) -> "TrainConfig":
        if self.weights is None:
            if self.lora_rank is not None:
                raise ValueError("lora_rank needs weights to start from")
            return self
        self.start = self.start or "published"
        only = {"start": "published", "initial_scale": 1, "sequence_parallel": 1}
        for name, value in (only | {"sequence_chunk": None}).items():
            if getattr(self, name) != value:
                raise ValueError(f"{name}: must be {value} with weights to start from")
        self.weights = str(Path(self.weights).absolute())
        if not Path(self.weights, "config.json").is_file():
            raise ValueError(f"weights: no model directory at {self.weights}")
        kind = read_json(Path(self.weights, "config.json")).get("model_type")
        if kind not in MODELS:  # it cannot reset its state within a row
            self.data = replace(self.data, packed=False)
        if self.optimizer.weight_decay is None:  # it would pull learned weights to 0
            self.optimizer = replace(self.optimizer, weight_decay=0.0)
        self.model, self.tokenizer = {}, TokenizerConfig("pretrained", path=self.weights)
        return self

    @model_validator(mode="after")
    def _resolve_start(self) -> "TrainConfig":
        """Write out what `start` decides, so that the saved configuration says it."""
        args, optimizer = self.model_args(vocab_size=1), self.optimizer
        rate, transitions = 1 / args.hidden_size, 1.0
        if self.start is None:
            is_ours = self.model.get("preset", "demo") == "demo"
            self.start = "spread" if is_ours and args.can_spread else "published"
        if self.weights is not None:
            rate = 1e-3
        elif self.start == "spread":
            if not args.can_spread:
                names = ("transition", "gate", "mixer")
                given = ", ".join(f"{n} {getattr(args, n)!r}" for n in names if hasattr(args, n))
                allowed = f"spread is for polar or real gates with biases, got {given}"
                raise ValueError(f"start: {allowed}; choose start: published")
            longest = max(2.0, self.data.length / 10)
            start = {"longest_half_life": longest, "input_scale": args.input_gate != "tied"}
            self.model = start | self.model
            rate, transitions = 1.5 * rate, 0.5
        rate = optimizer.learning_rate or (rate / 10 if optimizer.name == "lion" else rate)
        transition_rate = optimizer.state_transition_learning_rate or rate * transitions
        self.optimizer = replace(
            optimizer, learning_rate=rate, state_transition_learning_rate=transition_rate
        )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "TrainConfig":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps and epochs")
        model = self.model_args(vocab_size=1)
        if self.weights is None and model.num_hidden_layers > 1000:
            raise ValueError("model.num_hidden_layers: expected at most 1000")
        # mx.checkpoint recomputes with other random numbers: wrong gradients without an error.
        if model.dropout > 0 and self.checkpoint_blocks:
            raise ValueError("checkpoint_blocks needs model.dropout: 0")
        if self.checkpoint_blocks and (self.carry_state or self.sequence_chunk is not None):
            raise ValueError("checkpoint_blocks: no use beside sequence_chunk and carry_state")
        steps = [step for step, _ in self.optimizer.knots or ()]
        if steps != sorted(set(steps)):
            raise ValueError("optimizer.knots: the steps must rise")
        if self.carry_state and not self.data.packed:
            raise ValueError("carry_state needs data.packed: true")
        allowed = model.dropout == 0 and model.mixer == "gate_loop" and self.sequence_parallel == 1
        if (self.sequence_chunk is not None or self.carry_state) and not allowed:
            name = "carry_state" if self.sequence_chunk is None else "sequence_chunk"
            needs = "model_type gateloop, dropout 0, mixer gate_loop and sequence_parallel 1"
            raise ValueError(f"{name} needs {needs}")
        return self

    @staticmethod
    def load(path: Path | str | None, overrides: dict[str, object] | None = None) -> "TrainConfig":
        """Read a YAML file (None: the defaults) and lay overrides over it.

        Args:
            path: The YAML file.
            overrides: Values by dotted key, e.g. `{"optimizer.learning_rate": 1e-3}`; `steps`
                replaces the file's `epochs` and the other way round.

        Raises:
            InputError: Unreadable file, unknown key, or impossible value, named with its file.
        """
        source = "configuration" if path is None else str(path)
        tree = {} if path is None else read_yaml(Path(path))
        if (overrides or {}).get("weights") is not None:
            tree = {key: tree[key] for key in tree if key not in ("start", "initial_scale")}
        for key, value in (overrides or {}).items():
            _override(tree, key, deepcopy(value), source)  # later keys may change a section
        if tree.get("steps") is None and tree.get("epochs") is None:
            tree["epochs"] = 1
        try:
            return TypeAdapter(TrainConfig).validate_python(tree)
        except ValidationError as error:
            raise InputError(f"{source}: {first_problem(error, TrainConfig)}") from None

    def model_args(self, vocab_size: int) -> Any:
        """The model's arguments, with the tokenizer's number of entries."""
        options = dict(self.model)
        model_type = options.pop("model_type", "gateloop")
        if not isinstance(model_type, str) or model_type not in MODELS:
            given = shown(model_type)
            raise InputError(f"unknown model.model_type {given}{among(given, MODELS)}")
        kind = module(model_type).ModelArgs
        if (preset := options.pop("preset", None)) is not None and model_type != "gateloop":
            raise InputError(f"model.preset: leave it out with model_type {model_type!r}")
        if preset is not None and (not isinstance(preset, str) or preset not in PRESETS):
            given = shown(preset)
            raise InputError(f"unknown model.preset {given}{among(given, PRESETS)}")
        allowed = [field.name for field in fields(kind) if field.name != "model_type"]
        for key in options:
            if key not in allowed:
                key = shortened(str(key))
                raise InputError(f"unknown key model.{key}{among(key, ['preset', *allowed])}")
        base = asdict(PRESETS[preset]) if preset else {}
        try:
            args = kind(**{**base, "vocab_size": vocab_size, **options})
        except InputError as error:
            raise InputError(str(error).replace("config: ", "model.", 1)) from None
        if args.vocab_size < vocab_size:
            given = f"model.vocab_size {args.vocab_size}"
            raise InputError(f"{given} is below the tokenizer's {vocab_size} entries")
        return args

    def total_steps(self, batches_per_epoch: int) -> int:
        """Return the number of optimizer steps, from `steps` or from `epochs`."""
        batches = (self.epochs or 0) * batches_per_epoch
        steps = self.steps or max(1, round(batches / self.optimizer.accumulate))
        if (warmup := self.optimizer.warmup_steps) is not None and warmup >= steps:
            reason = f"optimizer.warmup_steps ({warmup}) must be below the run's {steps} steps"
            raise InputError(f"{reason}; lower it with --set optimizer.warmup_steps=N")
        last, factor = (self.optimizer.knots or [(steps, 0.0)])[-1]
        if factor == 0 and last < steps:
            given = f"optimizer.knots end at step {last}, the run at {steps}"
            raise InputError(f"{given}; change both, or leave out the knots")
        return steps

    def to_dict(self) -> dict[str, object]:
        """The resolved configuration as plain YAML values; `load` reads it back equal."""
        return TypeAdapter(TrainConfig).dump_python(self, mode="json")


def _override(tree: dict[str, Any], key: str, value: Any, source: str) -> None:
    if key in ("steps", "epochs"):
        tree.pop("epochs" if key == "steps" else "steps", None)
    *sections, name = key.split(".")
    for section in sections:
        if tree.get(section) is None:
            tree[section] = {}
        tree = tree[section]
        if not isinstance(tree, dict):
            raise InputError(f"{source}: {section} is not a section, so {key} cannot be set")
    tree[name] = value
