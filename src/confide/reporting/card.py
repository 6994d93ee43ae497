"""The model card: what may be shared about a run in; `model/README.md` with Hugging Face's front matter out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ..accounting.guarantees import down
from ..attacks.lines import audits, lines
from ..errors import ConfideError, printable
from ..rundir import write_private
from ..wording import METHODS, SELECTIVE, TITLES, epsilon, small, utility
from .gather import Found

CERTIFICATE = "certificate-shareable.json"  # the run's, without evidence
_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|!~$&])")


def write_card(folder: Path, found: Found) -> Path | None:
    """Write the card beside the weights; nothing where there are none yet. `found` must be what may be shared."""
    if not found.shareable:
        raise AssertionError("a model card holds only what may be shared")
    if not (folder / "model").is_dir():
        return None
    path = folder / "model" / "README.md"
    try:
        write_private(path, card(found))
    except OSError as error:
        raise ConfideError(
            f"cannot write {path}: {error.strerror}; make room or make it writable, and run the command again"
        ) from None
    return path


def card(found: Found) -> str:
    """The card's text."""
    front = yaml.safe_dump(_front(found), sort_keys=False, allow_unicode=True, default_flow_style=False)
    certificate = found.certificate
    parts = [
        f"# {_text(found.name)}",
        f"A language model trained with confide by {METHODS.get(found.method, _text(found.method))}, from "
        f"{_text(found.options.get('model', 'an unnamed model'))}.",
        *_promise(found),
        "## Data",
        _data(found),
        "## Training",
        _list([f"{name.replace('_', ' ')}: {_text(found.options[name])}" for name in
               ("method", "model", "epochs", "batch_size", "optimizer", "learning_rate", "clip_norm", "precision") if found.options.get(name) is not None]),
        *_noise(found),
        "## Evaluation",
        _evaluation(found),
        *_attacks(found),
    ]  # fmt: skip
    if certificate is not None and found.holds:
        parts += ["## How to verify", f"With the run's `{CERTIFICATE}` and `ledger.jsonl`, and without any data:\n\n```\nconfide verify {CERTIFICATE}\n```\n\n"
                  f"The ledger has {certificate['ledger']['length']} entries and the head `{_code(certificate['ledger']['head'])}`."]  # fmt: skip
    return (
        f"---\n{front}---\n\n<!-- Written by confide report, which writes it anew. -->\n\n" + "\n\n".join(parts) + "\n"
    )


def _front(found: Found) -> dict[str, Any]:
    front: dict[str, Any] = {
        "library_name": "transformers",
        "license": "other",
        "license_name": "see-the-model-owner",
        "tags": ["confide", found.method],
    }
    if found.main is not None:
        front["tags"].append("differential-privacy")
    if found.options.get("task", "causal") == "causal":
        front["pipeline_tag"] = "text-generation"
    model = str(found.options.get("model", ""))
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model) and not model.startswith(("lstm", "gpt2-tiny")):
        front["base_model"] = model
    return front


def _promise(found: Found) -> list[str]:
    certificate = found.certificate
    if found.verdict.kind == "broken":
        return [
            "## What is promised",
            f"**Nothing: {_text(found.verdict.headline)}.**",
            *map(_text, found.verdict.reasons),
        ]
    if certificate is None:
        return [
            "## What is promised",
            "**Nothing.** This model has no certificate: it may repeat its training text word for word.",
        ]
    stated = [one for one in certificate["guarantees"] if one["name"] != "group"]
    groups = [one for one in certificate["guarantees"] if one["name"] == "group"]
    parts = ["## What is promised"]
    for one in stated:
        at = (
            f"ε = {epsilon(one['epsilon'])} at δ = {small(one['delta'])}, k = {one['k']:,}"
            if one["epsilon"] is not None
            else "no finite bound"
        )
        parts.append(f"**{TITLES.get(one['name'], _text(one['name']))}** ({at}). {_text(one['sentence'])}")
    if found.method == "sdp":
        parts.append(SELECTIVE)
    if len(groups) > 1:
        head = "| records that change | " + " | ".join(str(one["k"]) for one in groups) + " |"
        parts.append(
            f"{head}\n|---{'|---' * len(groups)}|\n| ε | "
            + " | ".join(epsilon(one["epsilon"]) for one in groups)
            + " |"
        )
    if certificate.get("left_out"):
        parts.append("A further guarantee rests on a labelled sample of the private records and is not published.")
    parts.append(f"Adjacency: {_text(certificate['adjacency']['name'])} ({_text(certificate['adjacency']['meaning'])}); unit: {_text(certificate['unit'])}; "
                 f"sampler: {_text(certificate['sampler'])}; accountant: {_text(certificate['accountant'])}.")  # fmt: skip
    parts += ["## Under these assumptions", _list([_text(one["text"]) for one in certificate["assumptions"]])]
    return [*parts, "## What is not promised", _list([_text(one) for one in certificate["not_promised"]])]


def _data(found: Found) -> str:
    if found.certificate is None or not found.holds:
        return "The training text is not published, and nothing about it is stated here."
    setting = found.certificate["setting"]
    return (
        f"The training text holds secrets and is not published. It was split into records (unit: {_text(setting['unit'])}). What the policy "
        f"{_code_span(setting['policy'])} finds counts as a secret; private is what it or the conservative policy "
        f"{_code_span(setting['conservative'])} flags. {setting['private_records']:,} private records were trained on. Counts of what was found are "
        "private statistics and are not stated."
    )


def _evaluation(found: Found) -> str:
    if found.utility is not None:
        return f"{utility(found.utility).capitalize()}, on {found.utility['on']}."
    return "Not measured." if found.holds else "Numbers of a model that no certificate covers are not published."


def _noise(found: Found) -> list[str]:
    if found.certificate is None or not found.holds:
        return []
    rows = []
    for event in found.certificate["ledger"]["charged"]:
        values = [
            f"{name.replace('_', ' ')} {value:.6g}" for name, value in event.items() if isinstance(value, (int, float))
        ]
        rows.append(f"{_text(event['kind'])}: {', '.join(values)}")
    return ["What was spent on private records:", _list(rows)]


def _attacks(found: Found) -> list[str]:
    rows, _ = lines(found.attacks)
    if not rows:
        return []
    table = "| attack on planted secrets | measured | chance | ceiling |\n|---|---|---|---|\n"
    table += "\n".join(
        "| " + " | ".join(_text(cell) for cell in (one.name, one.measured, one.chance, one.ceiling)) + " |"
        for one in rows
    )
    said = [f"Audit of {what}: ε is at least {down(part['lower_bound'])} with {100 * part['confidence']:g} % confidence."
            for what, part in audits(found.attacks)]  # fmt: skip
    return [table, *said]


def _list(items: list[str]) -> str:
    return "\n".join(f"* {item}" for item in items)


def _text(value: Any) -> str:
    """Any text as Markdown that shows it and does nothing else."""
    return _SIGNS.sub(r"\\\1", printable(" ".join(str(value).split()))).replace("://", ":\u200b//")


def _code(value: Any) -> str:
    return printable(str(value)).replace("`", "'")


def _code_span(value: Any) -> str:
    return f"`{_code(' '.join(str(value).split()))}`"
