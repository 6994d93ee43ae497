"""The choices of a training run: what a user says comes in, checked; nothing of it depends on a private record."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, get_type_hints

from ..errors import BadInput, meant

CHOICES: dict[str, tuple[str, ...]] = {
    "method": ("crt", "dpsgd", "sdp", "jft", "redacted", "anonymized", "plain"),
    "task": ("causal", "classify"),
    "optimizer": ("adamw", "adam", "sgd"),
    "schedule": ("constant", "linear", "cosine", "anneal"),
    "private_schedule": ("constant", "linear", "cosine"),
    "order": ("public-first", "private-first", "alternate"),
    "mask_records": ("train", "drop"),
    "reduction": ("mean", "sum"),
    "clipping": ("flat", "automatic", "per-layer"),
    "variant": ("sound", "paper"),
    "phase1": ("direct", "hand-screened", "noised"),
    "weights_from": ("outside", "unflagged-lines"),
    "validate_on": ("unflagged", "all"),
    "keep": ("last", "best"),
    "precision": ("fp32", "bf16"),
}
MOST = 500.0  # target of a calibration
NO_MODEL = "name a model with --model: lstm, gpt2-tiny, a folder, or a name on the model hub"
PRIVATE = ("crt", "dpsgd", "sdp", "jft")  # methods that add noise, and can be certified
IDLE = {  # options that change nothing for a method
    "dpsgd": ("ignore_mask", "fill_masks", "order", "ratio"),
    "jft": ("ignore_mask", "fill_masks", "ratio"),
    "sdp": ("ignore_mask", "fill_masks"),
    "plain": ("ignore_mask", "fill_masks", "ratio"),
    "anonymized": ("ignore_mask", "fill_masks", "ratio"),
    "redacted": ("ratio",),
}
OWN = {  # options that mean something to one method only
    "sdp": ("variant", "segments", "state_noise", "state_clip"),
    "jft": ("phase1", "phase1_epochs", "phase1_noise", "screened_by_hand"),
}
COMMON = (  # options that `confide train --help` shows; the others are for --help-all
    "model", "method", "lora", "max_length", "epochs", "batch_size", "private_batch_size", "learning_rate", "epsilon", "delta", "noise",
    "review", "seed",
)  # fmt: skip


HELP: dict[str, str] = {
    "model": "lstm, gpt2-tiny (with :key=value,… for other sizes), a folder, or a name on the model hub.",
    "method": "crt (noise on what may hold a secret), dpsgd (on all), sdp, jft; without noise redacted, anonymized, plain.",
    "task": "causal (a language model) or classify.",
    "classes": "All labels of a classifier, with commas.",
    "tokenizer": "A folder or hub name, if not the model's own.",
    "vocabulary_from": "Outside text from which a vocabulary is made.",
    "vocabulary_size": "Tokens of a vocabulary that is made here.",
    "weights_from": "What the weights of --model were made from: outside text, or unflagged-lines, these documents with a constant in "
    "place of every line that a policy flags; the certificate says so.",
    "special_tokens": "Tokens to add, with commas, such as 'SYS:,USR:'.",
    "from_scratch": "Take a model's configuration, not its weights.",
    "lora": "Train LoRA adapters of this rank instead of all weights.",
    "max_length": "Tokens of a record; longer ones are cut (default: 256, or what the model sees).",
    "epochs": "Passes over the corpus.",
    "batch_size": "Records of a step without noise.",
    "private_batch_size": "Expected records of a step with noise (default: a sixteenth of them, at most 1024).",
    "microbatch": "Long records at a time, of short ones more; changes memory and speed, never the result.",
    "optimizer": "adamw, adam or sgd.",
    "learning_rate": "Of steps without noise.",
    "private_learning_rate": "Of steps with noise, if another.",
    "schedule": "constant, linear, cosine, or anneal: a quarter whenever public validation does not improve.",
    "private_schedule": "constant, linear or cosine.",
    "warmup": "Share of the steps in which the rate rises.",
    "momentum": "Of sgd.",
    "weight_decay": "Of the optimizer.",
    "dropout": "Of the model.",
    "public_clip": "Largest norm of a public batch's gradient.",
    "epsilon": "The target; the noise is found.",
    "delta": "What is added to every probability.",
    "noise": "The noise multiplier, in place of --epsilon.",
    "clip_norm": "Largest norm of one record's gradient.",
    "clipping": "flat, automatic or per-layer.",
    "reduction": "A record's loss is the mean or the sum over its tokens.",
    "ratio": "Expected private epochs for each public one.",
    "order": "public-first, private-first or alternate, in each epoch.",
    "mask_records": "train, or drop: records with a mask contribute nothing, for a smaller epsilon.",
    "ignore_mask": "Masks are no targets of the loss.",
    "fill_masks": "An invented name, number or address in place of each mask.",
    "assistant_only": "Of chats, only what the assistant says is a target.",
    "variant": "Of sdp: sound, or paper.",
    "segments": "sdp as in the paper: private segments of a record at most.",
    "state_noise": "sdp as in the paper: noise of hidden states, if another.",
    "state_clip": "sdp as in the paper: largest norm of a hidden state.",
    "phase1": "Of jft: direct, hand-screened or noised.",
    "phase1_epochs": "Of jft, if other than --epochs.",
    "phase1_noise": "Of jft with a noised first phase.",
    "screened_by_hand": "Of jft: JSON lines that people have screened.",
    "review": "The review.json of the screened corpus: its bounds, and its counts, enter the certificate.",
    "tuning_runs": "Earlier runs of this very plan on the same private records; they count.",
    "seed": "Of initial weights and public batches; sampling and noise have none.",
    "validation": "Outside text to validate on, in place of held-out public records.",
    "validate_on": "unflagged: only records that neither policy flags; all: outside of the certificate.",
    "validation_share": "Share of the dialogues that is held out.",
    "keep": "The last model, or the best on validation; epsilon is the same.",
    "precision": "fp32, or bf16 for forward passes.",
    "log_every": "Steps between two lines of telemetry.",
    "checkpoint_every": "Steps between two checkpoints (default: a twentieth of the run).",
    "reserve": "Private steps entered in the ledger at a time; a crash forfeits the rest.",
}


@dataclass(frozen=True)
class Options:
    """One run. Every field is public."""

    model: str
    method: str = "crt"
    task: str = "causal"
    classes: tuple[str, ...] = ()
    tokenizer: str | None = None
    vocabulary_from: str | None = None
    vocabulary_size: int = 8192
    special_tokens: tuple[str, ...] = ()
    from_scratch: bool = False
    weights_from: str = "outside"
    lora: int | None = None
    max_length: int | None = None
    epochs: int = 3
    batch_size: int = 32
    private_batch_size: int | None = None
    microbatch: int = 32
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    private_learning_rate: float | None = None
    schedule: str = "constant"
    private_schedule: str = "constant"
    warmup: float = 0.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    dropout: float = 0.0
    public_clip: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    noise: float | None = None
    clip_norm: float = 1.0
    clipping: str = "flat"
    reduction: str = "mean"
    ratio: float = 1.0
    order: str = "public-first"
    mask_records: str = "train"
    ignore_mask: bool = False
    fill_masks: bool = False
    assistant_only: bool = False
    variant: str = "sound"
    segments: int = 8
    state_noise: float | None = None
    state_clip: float = 1.0
    phase1: str = "direct"
    phase1_epochs: int | None = None
    phase1_noise: float | None = None
    screened_by_hand: str | None = None
    review: str | None = None
    tuning_runs: int = 0
    seed: int = 0
    validation: str | None = None
    validate_on: str = "unflagged"
    validation_share: float = 0.05
    keep: str = "last"
    precision: str = "fp32"
    log_every: int = 50
    checkpoint_every: int | None = None
    reserve: int = 8

    def __post_init__(self) -> None:
        from ..accounting.events import check_count, check_number, short  # here: the command line must start quickly

        for name, kind in get_type_hints(Options).items():
            value = getattr(self, name)
            if kind == tuple[str, ...] and isinstance(value, str):
                value = listed(value)
                object.__setattr__(self, name, value)
            if kind is bool and not isinstance(value, bool):
                raise BadInput(f"{option(name)} must be true or false, got {short(value)}")
            if kind in (str, str | None) and not isinstance(value, kind):
                raise BadInput(f"{option(name)} must be text, got {short(value)}")
            if kind == tuple[str, ...] and not (isinstance(value, tuple) and all(isinstance(v, str) for v in value)):
                raise BadInput(f"{option(name)} must be a list of texts")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise BadInput(f"{option(name)} must be one of {', '.join(choices)}, got {short(getattr(self, name))}")
        if not self.model.strip():
            raise BadInput(NO_MODEL)
        for name in ("epochs", "batch_size", "microbatch", "log_every", "segments", "reserve"):
            check_count(option(name), getattr(self, name), high=10**7)
        if self.max_length is not None:
            check_count("--max-length", self.max_length, low=2, high=10**6)
        check_count("--vocabulary-size", self.vocabulary_size, low=260, high=10**7)
        check_count("--tuning-runs", self.tuning_runs, low=0, high=10**5)
        check_count("--seed", self.seed, low=0, high=2**62)
        for name in ("private_batch_size", "phase1_epochs", "checkpoint_every", "lora"):
            if getattr(self, name) is not None:
                check_count(option(name), getattr(self, name), high=10**9)
        check_number("--ratio", self.ratio, 0, 1000)
        for name in ("learning_rate", "clip_norm", "state_clip"):
            check_number(option(name), getattr(self, name), 0, 1e6)
        for name in ("private_learning_rate", "public_clip", "epsilon", "noise", "phase1_noise", "state_noise"):
            if getattr(self, name) is not None:
                check_number(option(name), getattr(self, name), 0, 1e6)
        if self.epsilon is not None and self.epsilon > MOST:
            raise BadInput(
                f"--epsilon {self.epsilon:g} promises nothing, and no noise is looked for beyond {MOST:g}; choose one below 20, or --noise"
            )
        if self.delta is not None:  # before a step is paid for: a certificate could not be issued at the end
            check_number("--delta", self.delta, 1e-9, 0.999, low_open=False)
        for name in ("warmup", "momentum", "weight_decay", "dropout", "validation_share"):
            check_number(option(name), getattr(self, name), 0, 1, low_open=False)
        self._check_together()

    def _check_together(self) -> None:
        private = self.method in PRIVATE
        if private and self.delta is None:
            raise BadInput(f"{self.method} needs --delta, and --epsilon or --noise: how much may the model leak?")
        if private and (self.epsilon is None) == (self.noise is None):
            raise BadInput("give either --epsilon (the noise is found) or --noise (its epsilon is stated)")
        if not private and any(value is not None for value in (self.epsilon, self.noise)):
            raise BadInput(
                f"{self.method} adds no noise, so that no epsilon holds; leave --epsilon and --noise out, or use crt or dpsgd"
            )
        for method, names in OWN.items():
            for field in dataclasses.fields(self):
                if method != self.method and field.name in names and getattr(self, field.name) != field.default:
                    raise BadInput(
                        f"{option(field.name)} is an option of {method}, and changes nothing for {self.method}; leave it out"
                    )
        given = {field.name for field in dataclasses.fields(self) if getattr(self, field.name) != field.default}
        idle = [
            *IDLE.get(self.method, ()),
            *(("segments", "state_noise", "state_clip") if self.variant == "sound" else ()),
        ]
        if name := next((name for name in idle if name in given), None):
            variant = " --variant sound" if name in OWN["sdp"] else ""
            raise BadInput(f"{option(name)} changes nothing for {self.method}{variant}; leave it out")
        if self.dropout == 1:
            raise BadInput("--dropout must be below 1: at 1 nothing is left to learn from")
        if self.lora is not None and self.model.partition(":")[0] == "lstm":
            raise BadInput(
                "--lora adapts linear layers and the LSTM has none; leave it out, and the LSTM is trained in full"
            )
        if self.weights_from != "outside" and (self.method not in ("crt", "dpsgd") or self.review is not None):
            raise BadInput(
                f"--weights-from {self.weights_from} is proven for crt and dpsgd without --review; start from outside weights"
            )
        if self.momentum and (self.optimizer != "sgd" or self.momentum == 1):
            raise BadInput("--momentum is below 1 and belongs to --optimizer sgd; adam and adamw have their own")
        if self.task == "classify" and len(self.classes) < 2:
            raise BadInput("--task classify needs --classes: the names of all labels, with commas")
        if self.task == "classify" and self.method == "sdp":
            raise BadInput("sdp is defined for the tokens of a language model; classify with crt, jft or dpsgd")
        if self.method != "crt" and self.mask_records == "drop":
            raise BadInput(
                f"--mask-records drop is proven for crt, and changes nothing for {self.method}; leave it out"
            )
        if self.fill_masks and self.mask_records == "drop":
            raise BadInput(
                "--fill-masks trains on records with a mask, which --mask-records drop leaves out; give one of the two"
            )
        if self.validate_on == "all" and self.validation is None:
            raise BadInput("--validate-on all needs outside text: name it with --validation")
        if self.validate_on == "all" and self.private and (self.keep == "best" or self.schedule == "anneal"):
            raise BadInput(
                "--validate-on all must not choose the model: flagged records would steer it, outside of the certificate; leave out "
                "--keep best and --schedule anneal, or validate on unflagged records"
            )
        if self.method == "jft" and self.phase1 == "hand-screened" and not self.screened_by_hand:
            raise BadInput(
                "--phase1 hand-screened needs --screened-by-hand FILE: JSON lines with the text as people left it"
            )
        for needed, name in (("hand-screened", "screened_by_hand"), ("noised", "phase1_noise")):
            if getattr(self, name) is not None and self.phase1 != needed:
                raise BadInput(
                    f"{option(name)} belongs to --phase1 {needed}, which was not asked for; give both, or neither"
                )
        if self.method == "jft" and self.phase1 == "noised" and self.phase1_noise is None:
            raise BadInput("--phase1 noised needs --phase1-noise: the noise multiplier of the first phase")
        if self.tuning_runs and self.noise is None:
            raise BadInput(
                "--tuning-runs needs --noise, the noise that the earlier runs had: with --epsilon each run would be planned with more "
                "noise than those before it had"
            )
        if self.method == "jft" and self.tuning_runs:
            raise BadInput("--tuning-runs is not counted for jft, whose ledger has two phases; use crt, dpsgd or sdp")

    @property
    def private(self) -> bool:
        return self.method in PRIVATE

    def to_plain(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_plain(cls, plain: Any) -> Options:
        if not isinstance(plain, dict):
            raise BadInput("the training options must be a mapping of names to values")
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(str(name) for name in plain.keys() - known)
        if unknown:
            named = meant(unknown[0], known) or "; `confide train --help-all` lists them"
            raise BadInput(f"unknown training option {unknown[0][:40]!r}{named}")
        if "model" not in plain:
            raise BadInput(NO_MODEL)
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}
        return cls(**values)


def listed(value: Any) -> Any:
    """A text with commas, as on the command line, as a tuple; anything else as it is."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def option(name: str) -> str:
    """A field as it is called on the command line."""
    return f"--{name.replace('_', '-')}"
