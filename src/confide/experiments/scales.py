"""The scales at which a study can be done: for each, how much text, which models, and the options of each method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = dict[str, Any]
DELTA = 8e-5  # of CRT and S-DP
ATTACKED: Options = {"papers": True}
ORIGINAL, SIMULATED, MULTIWOZ, WIKITEXT, ABCD, SST2 = (
    "customersim-original", "customersim", "multiwoz21", "wikitext2", "abcd-text", "sst2",
)  # fmt: skip

# What counts as a secret in each corpus, and which records may still hold one. Canaries are digits.
SCREENING: dict[str, Options] = {
    ORIGINAL: {"policy": "union(customersim:{people}, digits)", "conservative": "allowlist", "unit": "turn"},
    SIMULATED: {"policy": "union(customersim, digits)", "conservative": "allowlist", "unit": "turn"},
    MULTIWOZ: {"policy": "union(patterns, digits)", "conservative": "allowlist", "unit": "turn"},
    WIKITEXT: {"policy": "digits", "conservative": "allowlist", "unit": "document"},
    ABCD: {"policy": "patterns", "conservative": "everything", "unit": "document"},
    SST2: {"policy": "high-entity", "conservative": "everything", "unit": "document", "label_field": "label"},
}


@dataclass(frozen=True)
class Scale:
    """`documents`: the first so many of a corpus's training split. `steps`: values of a sweep at most."""

    name: str
    seeds: int
    tests: int
    samples: int
    models: Mapping[str, Options]
    methods: Mapping[str, Options]
    documents: Mapping[str, int | None] = field(default_factory=dict)
    steps: int = 100
    outside: str | None = None  # the corpus that vocabularies are made from

    def thinned(self, values: tuple[float, ...]) -> tuple[float, ...]:
        """At most `steps` of a sweep's values, the first and the last among them."""
        if len(values) <= self.steps:
            return values
        last = len(values) - 1
        return tuple(values[round(n * last / (self.steps - 1))] for n in range(self.steps))

    def training(self, model: str, method: str, corpus: str) -> Options:
        """Options from the general to the special: the model's, the method's, the method's for this model, and for this corpus."""
        found: Options = {"method": method, **self.models[model]}
        for name in (method, f"{model} {method}", f"{model} {corpus}", f"{model} {method} {corpus}"):
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


def _small() -> Scale:
    """Seconds: to see that everything runs; the numbers mean nothing."""
    methods: dict[str, Options] = {
        name: {**NOISED, "epsilon": 4.0, "epochs": 1, "private_batch_size": 16, "learning_rate": 1e-2} for name in PRIVATE
    }
    methods |= {"sdp": {**methods["sdp"], "variant": "paper", "segments": 4, "noise": 1.0, "epsilon": None}, "jft": {**methods["jft"], "phase1_epochs": 1}}
    shape: Options = {"vocabulary_size": 300, "max_length": 64, "epochs": 1, "learning_rate": 1e-2, "validation_share": 0.3}
    return Scale(
        "smoke", seeds=1, tests=5, samples=20, steps=2, outside=SIMULATED,
        models={"lstm": {"model": "lstm:hidden_size=16", **shape}, "gpt": {"model": "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2", **shape}},
        methods=methods, documents=dict.fromkeys((ORIGINAL, SIMULATED, MULTIWOZ, WIKITEXT, ABCD), 60),
    )  # fmt: skip


PLAIN: Options = {"learning_rate": 4e-3, "schedule": "cosine", "batch_size": 64, "warmup": 0.05}
_DPSGD: Options = {**NOISED, "epsilon": 2.0, "clip_norm": 0.05, "private_batch_size": 512, "warmup": 0.05}


def _two_cores() -> Scale:
    """Two cores: runs of minutes."""
    lstm: Options = {"model": "lstm", "vocabulary_size": 4096, "max_length": 256, "microbatch": 64, "validation_share": 0.1, "epochs": 4, **PLAIN}
    gpt: Options = {**lstm, "model": "gpt2-tiny", "learning_rate": 2e-3}
    methods: dict[str, Options] = {
        "crt": {**_DPSGD, "private_learning_rate": 1e-2}, "dpsgd": {**_DPSGD, "learning_rate": 1e-2}, "sdp": {**_DPSGD, "private_learning_rate": 1e-2},
        "jft": {**_DPSGD, "private_learning_rate": 2e-3, "phase1_epochs": 3, "epochs": 3},
        "public lines": {"method": "plain", "epochs": 2, "batch_size": 128, "microbatch": 128},
    }  # fmt: skip
    return Scale(
        "cpu", seeds=3, tests=300, samples=1000, outside=WIKITEXT, models={"lstm": lstm, "gpt": gpt}, methods=methods,
        documents={ORIGINAL: 2000, SIMULATED: 2000, MULTIWOZ: 1500, WIKITEXT: 4000, ABCD: None, SST2: 10_000}, steps=4,
    )  # fmt: skip


SCALES = {scale.name: scale for scale in (_small(), _two_cores())}
