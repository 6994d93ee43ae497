"""A plan in; its model and its tokenizer out, on their device and with room for each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import BadInput, Refused
from ..models import Lora, add_placeholders, build, load_tokenizer
from ..models.tokens import BUILT_IN
from . import selective
from .planning import TrainingPlan
from .provenance import TRAINED_ON, refuse_seen, trained_on

DEFAULT_LENGTH = 256


def new_model(plan: TrainingPlan, tokenizer: Any) -> tuple[Any, torch.device]:
    options = plan.options
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(
        options.model,
        tokenizer,
        task=options.task,
        classes=options.classes or None,
        lora=None if options.lora is None else Lora(rank=options.lora, alpha=2 * options.lora),
        from_scratch=options.from_scratch,
        seed=options.seed,
        max_length=options.max_length or (DEFAULT_LENGTH if options.model.partition(":")[0] in BUILT_IN else None),
        dropout=options.dropout,
    )
    if (
        options.precision == "bf16"
        and device.type == "cpu"
        and any(isinstance(m, torch.nn.LSTM) for m in model.modules())
    ):
        raise BadInput("--precision bf16 does not run for an LSTM on a CPU; leave it out")
    selective.check(options, model)
    seen = [] if options.from_scratch else trained_on(model.config)
    if options.private:
        refuse_seen(seen, plan.screened, "--model")
    setattr(model.config, TRAINED_ON, [*seen, plan.screened.manifest["digest"]])
    return model.to(device), device


def new_tokenizer(plan: TrainingPlan) -> tuple[Any, str, dict[str, int]]:
    """The tokenizer, where its vocabulary comes from, and the placeholders' ids."""
    options = plan.options
    tokenizer, kind = load_tokenizer(
        options.tokenizer,
        options.model,
        public_texts=lambda: _public_texts(plan),
        vocabulary_size=options.vocabulary_size,
        external=None if options.vocabulary_from is None else Path(options.vocabulary_from),
    )
    if kind == "public" and not plan.public_is_public:
        raise Refused(
            f"{options.method} counts every record as private, so that no vocabulary may be made from any of them; give "
            "--tokenizer NAME|DIR, or --vocabulary-from FILE with outside text"
        )
    if options.special_tokens:
        tokenizer.add_tokens(list(options.special_tokens))
    return tokenizer, kind, placeholders_of(plan, tokenizer)


def placeholders_of(plan: TrainingPlan, tokenizer: Any) -> dict[str, int]:
    """A token for each type of finding; only a baseline that promises nothing may read the types off the corpus."""
    return (
        add_placeholders(tokenizer, plan.screened.manifest["findings"]) if plan.options.method == "anonymized" else {}
    )


def _public_texts(plan: TrainingPlan) -> Iterator[str]:
    for batch in plan.screened.batches("public", ("text",)):
        yield from batch["text"].to_pylist()
