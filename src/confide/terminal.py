"""What people see in the terminal: tables, a curve in characters, and numbers rounded to the safe side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from .accounting.guarantees import up


def epsilon_text(value: float | None) -> str:
    """ε for people: rounded up, or the words that there is none."""
    return "no finite bound" if value is None else up(value)


def show_epsilon(console: Console, found: dict[str, Any]) -> None:
    """The calculator's answer."""
    if "labels" in found:
        console.print(
            f"[bold]{found['labels']:,}[/] independent labels without a single miss bound the miss rate by "
            f"{found['delta2']:g} with confidence {found['confidence']:.0%}"
        )
        return
    if "choices" in found:
        _show_choices(console, found)
        return
    if "target_epsilon" in found:
        console.print(f"noise multiplier [bold]{found['noise_multiplier']:.4g}[/], {found['steps']:,} steps "
                      f"({found['epochs']:.4g} epochs) meet epsilon {found['target_epsilon']:g}")  # fmt: skip
    console.print(f"epsilon = [bold]{epsilon_text(found['epsilon'])}[/] at delta = {found['delta']:g}", highlight=False)
    facts = [
        ("adjacency", f"{found['adjacency']}, k={found['k']}: {found['adjacency_meaning']}"),
        ("sampler", _sampler(found)),
        ("noise", f"multiplier {found['noise_multiplier']:.4g} (of the clipping norm), unit: {found['unit']}"),
        ("accountant", found["accountant"]),
    ]
    for name, text in facts:
        console.print(f"  [dim]{name:<11}[/]{escape(text)}", highlight=False, soft_wrap=True)
    if "add_remove_epsilon" in found:
        console.print(
            f"  [dim]{'compare':<11}[/]tools that account for adding or removing a record would print "
            f"{up(found['add_remove_epsilon'])}; that does not hold for a masked secret",
            highlight=False,
            soft_wrap=True,
        )
    if "groups" in found:
        console.print()
        _show_groups(console, found["groups"])
    ceilings = found["ceilings"]
    console.print(
        f"\nNo attack on a coin-flipped record exceeds: balanced accuracy {ceilings['balanced_accuracy']:.3f} (chance 0.5), "
        f"true positives {ceilings['tpr_at_fpr_0.01']:.3f} at 1 % false ones, mean exposure "
        f"{ceilings['mean_exposure_of_a_million']:.2f} bits of 19.9 (chance 1.44)",
        highlight=False,
        soft_wrap=True,
    )
    if "bayesian" in found:
        _show_bayesian(console, found["bayesian"])


def _show_groups(console: Console, groups: list[dict[str, Any]]) -> None:
    table = Table("records changed", *[f"{row['k']}" for row in groups], box=None, pad_edge=False)
    table.add_row("epsilon", *[epsilon_text(row["epsilon"]) for row in groups])
    console.print(table)


def _sampler(found: dict[str, Any]) -> str:
    if found["sampler"] == "shuffled":
        return f"shuffled, {found['epochs']:g} epochs, no amplification"
    kind = "each record independently" if found["sampler"] == "poisson" else "batches of fixed size, records"
    return f"{found['sampler']}: {kind} with probability {found['sampling_rate']:.6g}, {found['steps']:,} steps"


def _show_bayesian(console: Console, bayesian: dict[str, Any]) -> None:
    public = f", and misses a secret that becomes public at most {up(bayesian['delta2'])}" if bayesian["delta2"] else ""
    console.print(
        f"\nWith confidence {bayesian['confidence']:.0%} the policy misses at most {up(bayesian['gamma'])} of secrets"
        f"{public}. At delta = {bayesian['delta']:.3g}:",
        highlight=False,
        soft_wrap=True,
    )
    for key, text in (
        ("slot_epsilon", "for a secret drawn into the very slot that was labelled by independent redraws"),
        ("corpus_epsilon", "for a random secret of the corpus, if the miss rate is an average over the corpus"),
    ):
        console.print(f"  epsilon = [bold]{epsilon_text(bayesian[key])}[/] {text}", highlight=False, soft_wrap=True)


def _show_choices(console: Console, found: dict[str, Any]) -> None:
    table = Table("batch size", "rate", "steps", "noise multiplier", "noise per step (of C)", box=None, pad_edge=False)
    for choice in found["choices"]:
        table.add_row(
            f"{choice['batch_size']:,}",
            f"{choice['sampling_rate']:.4g}",
            f"{choice['steps']:,}",
            f"{choice['noise_multiplier']:.4g}",
            f"{choice['noise_per_step']:.3g}",
        )
    console.print(table)
    console.print(
        f"\nBatch size [bold]{found['batch_size']:,}[/] has the least noise per step at epsilon {found['target_epsilon']:g}, "
        f"delta {found['delta']:g} (substitution, Poisson, k={found['k']}); larger batches cost memory, not privacy",
        soft_wrap=True,
    )


def show_certificate(console: Console, certificate: dict[str, Any]) -> None:
    """A certificate's guarantees, with the adjacency, unit and sampler under which they hold."""
    adjacency = certificate["adjacency"]
    console.print(
        f"{certificate['method']}, unit: {certificate['unit']}, sampler: {certificate['sampler']}, adjacency: "
        f"{adjacency['name']} ({escape(adjacency['meaning'])})\n",
        highlight=False,
    )
    for guarantee in certificate["guarantees"]:
        if guarantee["name"] == "group":
            continue
        value = epsilon_text(guarantee["epsilon"])
        at = f"epsilon {value} at delta {guarantee['delta']:.3g}" if guarantee["epsilon"] is not None else value
        console.print(f"[bold]{guarantee['name']}[/]: {at}", highlight=False)
        console.print(Padding(escape(guarantee["sentence"]), (0, 0, 0, 2)), highlight=False)
    groups = [g for g in certificate["guarantees"] if g["name"] == "group"]
    if groups:
        console.print()
        _show_groups(console, groups)


def chart(xs: Sequence[float], ys: Sequence[float], x_label: str, y_label: str, width: int = 60) -> str:
    """A curve with a logarithmic vertical axis, one line a power of ten, in characters."""
    logs = [math.log10(y) for y in ys]
    top, bottom = math.ceil(max(logs)), math.floor(min(logs))
    left, right = min(xs), max(xs)
    grid = [[" "] * width for _ in range(top - bottom + 1)]
    for x, y in zip(xs, logs, strict=True):
        grid[round(top - y)][round((x - left) / (right - left) * (width - 1))] = "•"
    lines = [f"{f'1e{top - i:+03d}':>7} │{''.join(cells).rstrip()}" for i, cells in enumerate(grid)]
    lines.append(f"{'':>7} └{'─' * width}")
    lines.append(f"{y_label:>7}  {left:<10g}{x_label:^{width - 20}}{right:>10.3g}")
    return "\n".join(lines)
