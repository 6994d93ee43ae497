"""The guarantees of a certificate: the ledger's curves and evidence in, (ε, δ) with one plain sentence each out."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .bayesian import corpus_epsilon, jft_epsilon, slot_epsilon
from .curves import Curve
from .events import Event, FixedSizeGaussian, Selection, SelectiveGaussian, Step, flatten
from .ledger import Ledger
from .missrate import Redraws, Review, public_misses
from .selection import SelectionCurve, any_curve
from .setting import Setting

GROUPS = tuple(range(1, 11))
LARGEST_GROUP = 20

AnyCurve = Curve | SelectionCurve
Evidence = Redraws | Review


@dataclass(frozen=True)
class Accounts:
    """The curves that a certificate reads from its ledger."""

    setting: Setting
    ledger: Ledger

    def steps(self, phase: str | None = None) -> list[Step]:
        """The charged steps; of a selection over a random number of runs, those of one run."""
        return one_run_steps(self.ledger.charged(phase))

    def curve(self, k: int, phase: str | None = None) -> AnyCurve:
        """The curve of a phase, or of all, for k records.

        *Formal guarantees.* What a Bloom filter may cost (`Setting.bloom_cost`) is added to every δ.
        """
        found = any_curve(self.ledger.charged(phase), self.setting.adjacency, k)
        return dataclasses.replace(found, failure=self.setting.bloom_cost(k))

    @property
    def conditional(self) -> bool:
        """Whether everything depends on a redaction without noise: JFT with a direct or hand-screened phase 1."""
        return self.setting.method == "jft" and self.setting.jft_phase1 != "noised"

    @property
    def phase(self) -> str | None:
        """The phase whose curve counts: all of them, or phase 2 where phase 1 saw nothing of a caught secret."""
        return "phase2" if self.conditional else None

    @property
    def main(self) -> AnyCurve:
        return self.curve(self.setting.k_missed, self.phase)

    @property
    def groups(self) -> tuple[int, ...]:
        """The group sizes with a proven curve."""
        steps = self.steps()
        if any(isinstance(step, FixedSizeGaussian) for step in steps):
            return (1,)
        if any(isinstance(step, SelectiveGaussian) and step.participation < 1 for step in steps):
            return (1,)
        return GROUPS


def one_run_steps(events: tuple[Event, ...]) -> list[Step]:
    """The steps of events; of a selection over a random number of runs, those of one run."""
    inner = [e.events if isinstance(e, Selection) and e.mean_runs is not None else (e,) for e in events]
    return flatten(event for group in inner for event in group)


def up(value: float) -> str:
    """A number for people, rounded upwards: two decimals from 1 to 10, fewer above, three digits below."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded, digits = _rounded_up(value)
    return short_up(value) if rounded < 0.001 else f"{rounded:,.{max(0, digits)}f}"


def short_up(value: float) -> str:
    """A δ for people: three digits, rounded upwards, and no zeros behind.

    >>> short_up(8e-5), short_up(1.0049e-5), short_up(0.01)
    ('8e-05', '1.01e-05', '0.01')
    """
    return f"{_rounded_up(value)[0]:.3g}" if value > 0 else "0"


def _rounded_up(value: float) -> tuple[float, int]:
    """A number to three digits, not below itself, and how many of them stand behind the point."""
    digits = 2 - math.floor(math.log10(abs(value)))
    return math.ceil(value * 10.0**digits - 1e-9) / 10.0**digits, digits


def down(value: float) -> str:
    """A lower bound for people, rounded downwards."""
    return f"{math.floor(value * 100) / 100:.2f}"


def percent(confidence: float) -> str:
    """A confidence in full: never rounded to one that was not reached."""
    return f"{100 * confidence:.10g}%"


def many(number: int, noun: str) -> str:
    """A number with its noun.

    >>> many(1, "secret"), many(2000, "secret")
    ('1 secret', '2,000 secrets')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def finite(value: float) -> float | None:
    """A number for JSON, which knows no infinity: None where no finite one is proven."""
    return value if math.isfinite(value) else None


def guarantees(accounts: Accounts, delta: float, evidence: Evidence | None) -> list[dict[str, Any]]:
    """Every guarantee that the accounts support at δ, the most important first."""
    if accounts.setting.method == "sdp":
        return [_selective(accounts, delta)]
    found = [_per_secret(accounts, delta)]
    if accounts.conditional:
        found.append(_caught_secret(accounts, delta))
    if accounts.setting.k_detected == 0:
        sentence = (
            "A secret that is all that one mask of the policy hides (one whole finding, or several) leaves no trace: the screened "
            "corpus is the same whether the record held the secret or <MASK>."
        )
        found.append(_guarantee("detected-secret", 0.0, 0.0, 0, sentence))
    found += [_group(accounts, delta, k) for k in accounts.groups]
    found.append(_uniform(accounts, delta))
    if evidence is not None and not (accounts.setting.order == "dedup-redact" and accounts.setting.dedup != "off"):
        found.append(_bayesian(accounts, delta, evidence))
    return found


def _guarantee(name: str, epsilon: float, delta: float, k: int, sentence: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "epsilon": finite(epsilon), "delta": delta, "k": k, "sentence": sentence, **more}


def _odds(epsilon: float, delta: float) -> str:
    if not math.isfinite(epsilon):
        return "there is no finite bound"
    stated = up(epsilon)  # the factor is that of the epsilon that stands there, which is no smaller
    factor = f"e^{stated}" + (f" ≤ {up(math.exp(float(stated)))}" if epsilon < 12 else "")
    return (
        f"any conclusion is at most {factor} times as likely as if <MASK> had stood there, plus {short_up(delta)}, and the "
        "other way round"
    )


def _whose(accounts: Accounts) -> str:
    setting = accounts.setting
    if accounts.conditional:
        return "secrets that phase 1's redaction caught, treating the record alike with and without them"
    if setting.weights == "unflagged-lines":
        line = "secrets inside a line that, looked at alone, the policy or the conservative policy flags"
        whole = setting.method != "crt"  # a policy may flag a line, and not the record that it stands in
        return line if whole else f"{line}, of a record that one of them flags as a whole"
    if setting.method != "crt" or setting.conservative == "everything":
        return "all secrets (every record is private)"
    if setting.recall_class is not None:
        return f"secrets that a policy flags, which by construction are at least: {setting.recall_class}"
    return "secrets that the policy or the conservative policy flags"


def _seen(accounts: Accounts) -> str:
    selected = isinstance(accounts.main, SelectionCurve)
    return "the selected model" if selected else "the model and all its intermediate states"


def _per_secret(accounts: Accounts, delta: float) -> dict[str, Any]:
    k = accounts.setting.k_missed
    if accounts.conditional:
        sentence = (
            "Without a condition there is no bound: a secret that phase 1's redaction missed was trained on without "
            "noise."
        )
        return _guarantee("per-secret", math.inf, delta, k, sentence)
    return _guarantee("per-secret", accounts.main.epsilon(delta), delta, k, _one_secret(accounts, delta))


def _caught_secret(accounts: Accounts, delta: float) -> dict[str, Any]:
    epsilon = accounts.main.epsilon(delta)
    return _guarantee("caught-secret", epsilon, delta, accounts.setting.k_missed, _one_secret(accounts, delta))


def _one_secret(accounts: Accounts, delta: float) -> str:
    return (
        f"For {_whose(accounts)}: for each one, whoever sees {_seen(accounts)} and knows everything else in the corpus, "
        f"{_odds(accounts.main.epsilon(delta), delta)}."
    )


def _group(accounts: Accounts, delta: float, k: int) -> dict[str, Any]:
    epsilon = accounts.curve(k, accounts.phase).epsilon(delta)
    records = "one record changes" if k == 1 else f"up to {k} records change"
    sentence = (
        f"For {_whose(accounts)}: where {records} when repeated or related ones are masked together, "
        f"{_odds(epsilon, delta)}."
    )
    return _guarantee("group", epsilon, delta, k, sentence)


def _uniform(accounts: Accounts, delta: float) -> dict[str, Any]:
    """All secrets at once (Definition 3's special case): only where the group is small enough to say anything."""
    k = accounts.setting.private_records
    largest = min(k, LARGEST_GROUP) if len(accounts.groups) > 1 else 1
    epsilon = accounts.curve(largest, accounts.phase).epsilon(delta)
    whose = f"For {_whose(accounts)}, all of them in all {k:,} private records at once"
    if k == largest:
        return _guarantee("uniform", epsilon, delta, k, f"{whose}: {_odds(epsilon, delta)}.")
    stated = f"with epsilon {up(epsilon)}" if math.isfinite(epsilon) else "without a finite epsilon"
    sentence = f"{whose}, there is no useful bound; the largest group computed is {largest}, {stated}."
    return _guarantee("uniform", math.inf, delta, k, sentence)


def miss_bounds(setting: Setting, evidence: Evidence) -> tuple[float, float]:
    """γ̄ and δ̄₂ of the evidence in this setting; δ₂ is 0 by construction only where nothing counted says otherwise."""
    return evidence.bounds(setting.all_flagged and not public_misses(evidence))


def _bayesian(accounts: Accounts, delta: float, evidence: Evidence) -> dict[str, Any]:
    setting = accounts.setting
    gamma, delta2 = miss_bounds(setting, evidence)
    sure = f"With confidence {percent(evidence.confidence)} over the labelled sample"
    of_class = "" if setting.recall_class is None else f" of the class flagged by construction ({setting.recall_class})"
    if setting.method == "jft":
        total, epsilon = _jft(accounts, delta, gamma)
        where = "into the labelled slot"
        if isinstance(evidence, Review):
            where = f"from the corpus (counting at most {evidence.cap} a record)"
        sentence = (
            f"{sure}, for a secret{of_class} drawn at random {where}, which phase 1 missed with probability at most {up(gamma)}, "
            f"{_odds(epsilon, total)}. Phase 2 trains on the original text, so that epsilon is never below its own."
        )
    else:
        total = delta + delta2  # what both policies miss is public: it is in δ, never in ε
        statement = slot_epsilon if isinstance(evidence, Redraws) else corpus_epsilon
        epsilon = statement(accounts.main, gamma, total, delta2) if total < 1 else math.inf
        total = min(total, 1.0)
        if isinstance(evidence, Redraws):
            drawn = f"for a secret{of_class} drawn at random into the labelled slot, which the policy misses there"
            sentence = f"{sure}, {drawn} with probability at most {up(gamma)}, {_odds(epsilon, total)}."
        else:
            sentence = (
                f"{sure}, for a secret occurrence{of_class} drawn uniformly from the corpus (counting at most "
                f"{evidence.cap} a record), whose context the attacker may know, and of which the policy misses at most {up(gamma)}, "
                f"{_odds(epsilon, total)}."
            )
    return _guarantee("bayesian", epsilon, total, setting.k_missed, sentence, confidence=evidence.confidence)


def _jft(accounts: Accounts, delta: float, gamma: float) -> tuple[float, float]:
    phase2 = accounts.curve(accounts.setting.k_missed, "phase2")
    if accounts.conditional:
        total = delta + gamma  # without noise, a miss in phase 1 reveals the secret
        return (total, jft_epsilon(phase2, gamma, total)) if total < 1 else (1.0, math.inf)
    return delta, jft_epsilon(phase2, gamma, delta, accounts.curve(accounts.setting.k_missed))


def _selective(accounts: Accounts, delta: float) -> dict[str, Any]:
    epsilon = accounts.main.epsilon(delta)
    sentence = (
        "(F, epsilon, delta)-selective privacy for two corpora with equal mask pattern and lengths, which differ in the "
        f"private tokens of one record: {_odds(epsilon, delta).replace('<MASK>', 'the other tokens')}. There is no "
        "guarantee for tokens that the policy misses. Its neighbours differ from those of confidentiality: this epsilon "
        "must not be compared with a confidentiality epsilon."
    )
    return _guarantee("selective", epsilon, delta, accounts.setting.k_missed, sentence)
