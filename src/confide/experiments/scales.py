"""The scales at which a study can be done: for each, how much text, which models, and the options of each method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = dict[str, Any]
DELTA = 8e-5  # of CRT and S-DP
ATTACKED: Options = {"papers": True}
ORIGINAL, SIMULATED, SMALL, OTHER, MULTIWOZ, WIKITEXT, ABCD, SST2 = (
    "customersim-original", "customersim", "customersim-small", "customersim-other", "multiwoz21", "wikitext2", "abcd-text", "sst2",
)  # fmt: skip

# What counts as a secret in each corpus, and which records may still hold one. Canaries are digits.
SCREENING: dict[str, Options] = {
    ORIGINAL: {"policy": "union(customersim:{people}, digits)", "conservative": "allowlist", "unit": "turn"},
    SIMULATED: {"policy": "union(customersim, digits)", "conservative": "allowlist", "unit": "turn"},
    SMALL: {"policy": "union(customersim, digits)", "conservative": "allowlist", "unit": "turn"},
    MULTIWOZ: {"policy": "union(patterns, digits)", "conservative": "allowlist", "unit": "turn"},
    WIKITEXT: {"policy": "digits", "conservative": "allowlist", "unit": "document"},
    ABCD: {"policy": "patterns", "conservative": "everything", "unit": "document"},
    SST2: {"policy": "high-entity", "conservative": "everything", "unit": "document"},
}


@dataclass(frozen=True)
class Scale:
    """`documents`: the first so many of a corpus's training split; `small`: at most, of a row that a few do for; `large`: of a row that
    needs many. `steps`: values of a sweep at most."""

    name: str
    seeds: int
    tests: int
    samples: int
    models: Mapping[str, Options]
    methods: Mapping[str, Options]
    documents: Mapping[str, int | None] = field(default_factory=dict)
    small: int | None = None
    large: int | None = None
    judged: Mapping[str, int] = field(default_factory=dict)  # a model's number of tests, in place of `tests`
    steps: int = 100
    outside: str | None = None  # the corpus that vocabularies are made from
    canaries: str | None = None  # in place of a study's own

    def thinned(self, values: tuple[float, ...], every: bool = False) -> tuple[float, ...]:
        """At most `steps` of a sweep's values, the first and the last among them."""
        if len(values) <= self.steps or (every and self.name != "smoke"):
            return values
        last = len(values) - 1
        return tuple(values[round(n * last / (self.steps - 1))] for n in range(self.steps))

    def part(self, model: str, corpus: str, size: str) -> int | None:
        """How many documents of a corpus are trained on; None: all."""
        if self.name != "smoke" and size in ("large", "all"):
            return self.large if size == "large" else None
        found = self.documents.get(f"{model} {corpus}", self.documents.get(corpus))
        return min((one for one in (found, self.small) if one is not None), default=None) if size == "small" else found

    def training(self, model: str, method: str, corpus: str, size: str = "part") -> Options:
        """Options from the general to the special: the model's, the method's, the method's for this model, corpus, and size."""
        found: Options = {"method": method, **self.models[model]}
        for name in (
            method,
            f"{model} {method}",
            f"{model} {corpus}",
            f"{model} {method} {corpus}",
            *((f"{model} {method} many",) if size in ("large", "all") else ()),
            f"{model} {method} {size}",
        ):
            found |= self.methods.get(name, {})
        return found

    def screening(self, corpus: str) -> Options:
        return dict(SCREENING[corpus])

    def vocabulary(self, model: str, corpus: str) -> str | None:
        """The corpus whose text makes the vocabulary: never the one that is trained on."""
        if "vocabulary_size" not in self.models[model] or self.outside is None:
            return None
        return self.outside if corpus != self.outside else SST2


NOISED: Options = {"delta": DELTA, "private_schedule": "linear"}
PRIVATE = ("crt", "dpsgd", "sdp", "jft")
CLASSES: Options = {"task": "classify", "classes": ["0", "1"]}


def _small() -> Scale:
    """Seconds: to see that everything runs; the numbers mean nothing."""
    noised: Options = {**NOISED, "epsilon": 4.0, "private_batch_size": 8}
    methods = {name: dict(noised) for name in PRIVATE}
    methods["jft"] |= {"phase1_epochs": 1}
    shape: Options = {
        "vocabulary_size": 300,
        "max_length": 64,
        "epochs": 1,
        "learning_rate": 1e-2,
        "validation_share": 0.3,
    }
    gpt: Options = {"model": "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2", **shape}
    return Scale(
        "smoke", seeds=1, tests=5, samples=20, steps=2, outside=OTHER, canaries="number=8,copies=2,format=My ID is: {digits:3}",
        models={"lstm": {"model": "lstm:hidden_size=16", **shape}, "gpt": gpt, "pretrained": gpt, "encoder": {**gpt, **CLASSES}},
        methods=methods, documents=dict.fromkeys(SCREENING, 60),
    )  # fmt: skip


def _two_cores() -> Scale:
    """Two cores: runs of minutes, on a part of each corpus unless a row says otherwise."""
    plain: Options = {"learning_rate": 6e-3, "schedule": "cosine", "batch_size": 128, "warmup": 0.05}
    noised: Options = {**NOISED, "epsilon": 2.0, "clip_norm": 0.05, "private_batch_size": 512, "warmup": 0.05}
    lstm: Options = {
        "model": "lstm",
        "vocabulary_size": 2048,
        "max_length": 256,
        "microbatch": 128,
        "validation_share": 0.2,
        "epochs": 15,
        **plain,
    }
    tuned: Options = {"schedule": "linear", "warmup": 0.06, "validation_share": 0.02}
    return Scale(
        "cpu", seeds=3, tests=300, judged={"pretrained": 100, "encoder": 872}, samples=1000, outside=WIKITEXT, steps=3, small=1000, large=4000,
        documents={ORIGINAL: 3000, SIMULATED: 3000, f"gpt {ORIGINAL}": 1000, MULTIWOZ: 600, WIKITEXT: 6000, ABCD: 100, SST2: 6000, f"pretrained {WIKITEXT}": 200},
        models={
            "lstm": lstm,
            "gpt": {**lstm, "model": "gpt2-tiny", "learning_rate": 2e-3},
            "pretrained": {"model": "smollm2", "max_length": 64, "epochs": 2, "batch_size": 16, "microbatch": 8, "lora": 8, "learning_rate": 5e-4, **tuned},
            "encoder": {"model": "minilm", "max_length": 64, "epochs": 2, "batch_size": 32, "microbatch": 64, "learning_rate": 1e-4, **CLASSES, **tuned},
        },
        methods={
            "crt": {**noised, "private_learning_rate": 2e-2}, "dpsgd": {**noised, "learning_rate": 1e-2}, "sdp": {**noised, "private_learning_rate": 1e-3},
            "jft": {**noised, "private_learning_rate": 2e-3, "phase1_epochs": 8, "epochs": 8},
            "public lines": {"epochs": 2},
            # Many dialogues a few times, not few of them often: the noise is the same, and is divided among more
            **{f"{model} {corpus}": {"epochs": 5, "validation_share": 0.1} for model in ("lstm", "gpt") for corpus in (ORIGINAL, SIMULATED, MULTIWOZ)},
            # Lines of WikiText-2: small batches, as so few of them make few steps
            f"lstm {WIKITEXT}": {"epochs": 4, "batch_size": 16},
            **{f"lstm {name} {WIKITEXT}": {"private_batch_size": 64} for name in PRIVATE},
            f"lstm dpsgd {WIKITEXT}": {"private_batch_size": 64, "learning_rate": 2e-2},
            "gpt crt": {"private_learning_rate": 1e-3},
            "lstm plain many": {"epochs": 6, "learning_rate": 4e-3, "batch_size": 64, "validation_share": 0.05},
            "lstm redacted many": {"epochs": 6, "learning_rate": 4e-3, "batch_size": 64, "validation_share": 0.05},
            "lstm public lines many": {"epochs": 4, "learning_rate": 4e-3, "batch_size": 64, "validation_share": 0.05},
            "lstm crt many": {"epochs": 3, "private_learning_rate": 4e-2, "private_batch_size": 256, "validation_share": 0.05},
            "lstm sdp many": {"epochs": 3, "private_learning_rate": 2e-3, "validation_share": 0.05},
            "lstm dpsgd many": {"epochs": 3, "learning_rate": 4e-2, "private_batch_size": 256, "validation_share": 0.05},
            "lstm jft many": {"epochs": 2, "phase1_epochs": 4, "learning_rate": 4e-3, "batch_size": 64, "private_batch_size": 256, "private_learning_rate": 2e-3,
                               "validation_share": 0.05},
            **{f"lstm {name} large": {"private_batch_size": 128} for name in PRIVATE},
            "lstm sdp large": {"private_batch_size": 32},
            "lstm plain large": {"epochs": 8}, "lstm redacted large": {"epochs": 8},
            **{f"pretrained {name}": {"epsilon": 3.0, "delta": 1e-6, "clip_norm": 0.1, "private_batch_size": 64, "learning_rate": 1e-3,
                                      "private_learning_rate": 1e-3} for name in PRIVATE},
            # Of canaries: long enough to learn what stands there ten times
            **{f"pretrained {name} small": {"epochs": 6, "learning_rate": 2e-3} for name in ("plain", "redacted")},
            "pretrained jft small": {"phase1_epochs": 6, "learning_rate": 2e-3},
            **{f"encoder {name}": {"epsilon": 3.0, "delta": 1e-5, "clip_norm": 0.1, "private_batch_size": 512, "epochs": 5, "lora": 8,
                                   "private_learning_rate": 3e-3} for name in PRIVATE},
            "encoder crt": {"epsilon": 3.0, "delta": 1e-5, "clip_norm": 0.1, "private_batch_size": 512, "epochs": 5, "lora": 8, "private_learning_rate": 1e-2},
            "encoder dpsgd": {"epsilon": 3.0, "delta": 1e-5, "clip_norm": 0.1, "private_batch_size": 512, "epochs": 5, "lora": 8, "learning_rate": 1e-2},
            "encoder jft": {"epsilon": 3.0, "delta": 1e-5, "clip_norm": 0.1, "private_batch_size": 512, "phase1_epochs": 2, "epochs": 1,
                            "lora": 8, "learning_rate": 1e-3, "private_learning_rate": 3e-4},
            "pretrained jft": {"epsilon": 3.0, "delta": 1e-6, "clip_norm": 0.1, "private_batch_size": 64, "phase1_epochs": 2, "epochs": 1,
                               "learning_rate": 5e-4, "private_learning_rate": 3e-4},
        },
    )  # fmt: skip


def _papers() -> Scale:
    """The papers' own settings, by hub names; GPUs. CRT: LSTM 0.05/10/100, GPT 5e-4/256/10 (learning rate, batch size, epochs); S-DP: sgd with annealing."""
    lstm: Options = {"model": "lstm", "tokenizer": "gpt2", "max_length": 512, "optimizer": "sgd", "schedule": "anneal", "learning_rate": 20.0,
                     "batch_size": 256, "epochs": 50, "validation_share": 0.05}  # fmt: skip
    gpt: Options = {
        "model": "distilgpt2",
        "max_length": 512,
        "learning_rate": 5e-4,
        "batch_size": 256,
        "epochs": 10,
        "validation_share": 0.05,
    }
    written: Options = {
        "model": "gpt2",
        "max_length": 1024,
        "learning_rate": 5e-5,
        "batch_size": 256,
        "epochs": 3,
        "validation_share": 0.02,
    }
    encoder: Options = {
        "model": "roberta-base",
        "max_length": 256,
        "learning_rate": 2e-5,
        "batch_size": 32,
        "epochs": 3,
        "validation_share": 0.02,
        **CLASSES,
    }
    fine: Options = {
        "epsilon": 3.0,
        "delta": 1e-6,
        "clip_norm": 0.1,
        "private_batch_size": 1024,
        "private_learning_rate": 5e-4,
    }
    return Scale(
        "paper", seeds=5, tests=1000, samples=1000, models={"lstm": lstm, "gpt": gpt, "pretrained": written, "encoder": encoder},
        methods={
            "crt": {**NOISED, "epsilon": 2.0, "private_batch_size": 1024}, "dpsgd": {**NOISED, "epsilon": 2.0, "private_batch_size": 1024},
            "sdp": {**NOISED, "epsilon": 2.0, "private_batch_size": 1024}, "jft": {**NOISED, "epsilon": 3.0, "private_batch_size": 1024},
            "public lines": {"epochs": 10},
            "lstm crt": {"learning_rate": 0.05, "batch_size": 10, "epochs": 100, "clip_norm": 0.01},
            "lstm dpsgd": {"learning_rate": 0.1, "epochs": 50, "clip_norm": 0.01}, "lstm sdp": {"learning_rate": 0.1, "batch_size": 5, "epochs": 50, "clip_norm": 5e-3},
            **{f"{model} {method}": fine for model in ("pretrained", "encoder") for method in PRIVATE},
            "encoder dpsgd": {**fine, "epochs": 20}, "encoder jft": {**fine, "epochs": 20}, "pretrained dpsgd": {**fine, "epochs": 200},
            "pretrained jft": {**fine, "epochs": 200},
        },
    )  # fmt: skip


SCALES = {scale.name: scale for scale in (_small(), _two_cores(), _papers())}
