"""What is attacked: the folder of a run in; its model, and the records, secrets and canaries that its training saw, out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..accounting import Setting, read_ledger, verify
from ..accounting.ceilings import Ceilings
from ..accounting.guarantees import Accounts, many
from ..errors import BadInput
from ..models import load_trained
from ..plain_yaml import CONFIG
from ..policies import Finding, Policy
from ..screening.screened import Screened
from ..training.beginning import plan_of
from ..training.building import placeholders_of
from ..training.corpus import Source, TokenFile, examples, fingerprint
from ..training.encoding import VIEWS, Encoder, Tokens, View
from ..training.holdout import split_rows
from ..training.prepared import LEDGER, TOKENS, Prepared
from ..training.run import Run
from .candidates import Candidate
from .games import Masked
from .likelihood import Row

MOST_COPIES = 50  # of one value, for which a curve of their group is computed
MOST_SECRETS = 200_000  # private records whose secrets are looked for


@dataclass(frozen=True)
class Canaries:
    """Planted secrets. `present`: how the coins fell, None if none were flipped; `copies`: how often each is in the training text."""

    format: str
    secrets: tuple[str, ...]
    present: tuple[bool, ...] | None = None
    drawn: bool = False  # uniformly, from the operating system's entropy: only then has exposure a ceiling
    policy: str = "as-is"
    copies: tuple[int, ...] = ()
    public: int = 0  # records with a canary that training read without noise

    @classmethod
    def read(cls, path: Path) -> Canaries:
        """From canaries.json, or the folder that holds it; coins.json lies beside it, if coins were flipped."""
        path = path / "canaries.json" if path.is_dir() else path
        secrets: tuple[str, ...] = ()
        try:
            planted = json.loads(path.read_text(encoding="utf-8"))
            secrets = tuple(str(one["secret"]) for one in planted["canaries"])
            coins = path.with_name("coins.json")
            present = None
            if planted.get("coins"):
                present = tuple(bool(one) for one in json.loads(coins.read_text(encoding="utf-8"))["present"])
            found = cls(
                str(planted["format"]),
                secrets,
                present,
                planted.get("seed", 0) is None and not planted.get("secret"),
                str(planted.get("policy", "as-is")),
                (int(planted.get("copies", 1)),) * len(secrets),
            )
        except FileNotFoundError as error:
            made = (
                "restore it: new coins say nothing about a model that was trained"
                if secrets
                else "`confide canaries SPEC -o DIR` makes one"
            )
            raise BadInput(f"{error.filename}: no such file; {made}") from None
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(
                f"{path} (or coins.json beside it) is no list of canaries, which holds a format and canaries, each with its secret; bring it "
                "back from a backup: new canaries say nothing about a model that was trained"
            ) from None
        if not secrets or min(found.copies) < 1 or (present is not None and len(present) != len(secrets)):
            raise BadInput(
                f"{path}: there must be at least one canary, each once or more, and one coin for each; plant them again"
            )
        return found


class Place(NamedTuple):
    """A secret with the text around it, and the dialogue or document that it is from."""

    masked: Masked
    group: str


@dataclass(frozen=True)
class Subject:
    """A finished run."""

    run: Run
    prepared: Prepared

    @classmethod
    def open(cls, folder: str | Path) -> Subject:
        """A run that has ended. Its certificate is verified first: nothing is held against a forged one."""
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            raise BadInput(
                f"{folder} is no run: it holds no {CONFIG}; name the folder that `confide train` wrote, or another model with --model DIR"
            )
        if not (folder / "model" / "config.json").is_file():
            raise BadInput(f"{folder}: the run has no model yet; `confide train --resume -o {folder}` ends it")
        plan = plan_of(folder)
        if (folder / "certificate.json").exists():
            verify(folder)
        model, tokenizer = load_trained(folder / "model")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        prepared = Prepared(plan, folder, model.to(device), tokenizer, placeholders_of(plan, tokenizer), device)
        return cls(Run(folder), prepared)

    @property
    def screened(self) -> Screened:
        return self.prepared.plan.screened

    @property
    def model(self) -> Any:
        return self.prepared.model

    @property
    def tokenizer(self) -> Any:
        return self.prepared.tokenizer

    @property
    def writes_text(self) -> bool:
        return self.prepared.plan.options.task == "causal"

    @cached_property
    def certificate(self) -> dict[str, Any] | None:
        return self.run.certificate

    @property
    def accounts(self) -> Accounts | None:
        """The curves of the run; None if it has no certificate."""
        if self.certificate is None:
            return None
        ledger = read_ledger(self.run.folder / LEDGER)
        return Accounts(Setting.from_plain(ledger.setting), ledger)

    @cached_property
    def view(self) -> View:
        """How training saw private records in the last phase that read them."""
        sources = [
            one for phase in self.prepared.plan.phases for one in (phase.public, phase.private) if one is not None
        ]
        found = [source.view for source in sources if "private" in source.parts]
        return found[-1] if found else VIEWS[0]

    @cached_property
    def _rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        options = self.prepared.plan.options
        share = 0.0 if options.validation else options.validation_share
        trained, held = split_rows(self.screened, "private", share)
        planted = np.flatnonzero([name in self._canary_names for name in _groups(self.screened, "private")])
        return np.setdiff1d(trained, planted), np.setdiff1d(held, planted)

    @property
    def trained(self) -> NDArray[np.int64]:
        """The private records that were trained on, canaries left out."""
        return self._rows[0]

    @property
    def held(self) -> NDArray[np.int64]:
        """The private records of dialogues that were held out: of the same distribution, and never seen."""
        return self._rows[1]

    def must_write_text(self) -> None:
        """Refuse a classifier where the attack asks for text."""
        if not self.writes_text:
            raise BadInput(
                "the model is a classifier: it writes no text that could hold a secret; membership is what can be attacked"
            )

    # -- records ------------------------------------------------------------------------------------------------------

    def encoder(self) -> Encoder:
        return self.prepared.encoder(self.prepared.plan.phases[-1])

    def alone(self, other: Screened | None = None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which private records of the run's corpus, and of another one, have a text that no other private record of both has.

        Whether a text that occurs twice was trained on is no question of one record. Left out on both sides, what remains is
        as likely to have been trained on as held out, given which texts there are.
        """
        column = "text" if self.view == "screened" else "raw"
        texts = [_hashes(one, column) for one in (self.screened, other) if one is not None]
        _, places, counts = np.unique(np.concatenate(texts), return_inverse=True, return_counts=True)
        once = counts[places] == 1
        return once[: len(texts[0])], once[len(texts[0]) :]

    def candidates(
        self, rows: NDArray[np.int64], screened: Screened | None = None
    ) -> tuple[list[Candidate], list[int]]:
        """Private records as training saw them, and their classes; records without a target, which teach nothing, are left out."""
        encoder, wanted = self.encoder(), set(rows.tolist())
        seen = self._drawn(encoder) if encoder.fillings and screened is None else None
        found: list[Candidate] = []
        classes: list[int] = []
        groups, first = list(_groups(screened or self.screened, "private")), 0
        for some in examples(screened or self.screened, Source(("private",), self.view), encoder):
            mine = [(at, one) for at, one in enumerate(some, first) if at in wanted]
            first += len(some)
            encoded = encoder.encode([one for _, one in mine]) if seen is None else [seen(at) for at, _ in mine]
            for (at, example), tokens in zip(mine, encoded, strict=True):
                if self.writes_text and not tokens.target.any():
                    continue
                target = tokens.target.tolist() if self.writes_text else None
                found.append(Candidate(Row(tokens.ids.tolist(), target), example.text, groups[at]))
                classes.append(tokens.label)
        return found, classes

    def _drawn(self, encoder: Encoder) -> Callable[[int], Tokens]:
        """The tokens of a private record by its row, with what was drawn for its masks when the run began: another draw is another text."""
        phase = self.prepared.plan.phases[-1]
        source = next(one for one in (phase.private, phase.public) if one is not None and "private" in one.parts)
        folder = self.run.folder / TOKENS / fingerprint(self.screened, source, encoder)
        if not folder.exists():
            raise BadInput(
                f"{folder} is gone: what stood for the masks while {self.run.folder} was trained is known no more; bring it back from a backup, "
                "or train again"
            )
        tokens = TokenFile.open(folder, checked=True)
        before = sum(self.screened.manifest[part] for part in source.parts[: source.parts.index("private")])
        return lambda row: tokens[before + row]

    def secrets(self, rows: NDArray[np.int64], policy: Policy | None, screened: Screened | None = None) -> list[Place]:
        """The secrets of private records in their raw text: what screening found, or what `policy` finds."""
        wanted = set(rows[:MOST_SECRETS].tolist())
        places: list[Place] = []
        first = 0
        for batch in (screened or self.screened).batches("private", ("raw", "spans", "group"), 1 << 12):
            for at, row in enumerate(batch.to_pylist(), first):
                if at in wanted:
                    raw = row["raw"]
                    spans = policy.find(raw) if policy else [Finding(**one) for one in row["spans"] or ()]
                    for start, end, kind in _apart(spans):
                        places.append(Place(Masked(raw[:start], raw[end:], kind, raw[start:end]), row["group"]))
            first += batch.num_rows
        return places

    # -- canaries -----------------------------------------------------------------------------------------------------

    @cached_property
    def planted(self) -> Canaries | None:
        """All canaries of the corpus, trained on or held out."""
        path = self.screened.folder / "canaries.json"
        return Canaries.read(path) if path.exists() else None

    @cached_property
    def _canary_names(self) -> dict[str, int]:
        """The groups of records that hold a canary, and which."""
        return {} if self.planted is None else {f"canary-{i}": i for i in range(len(self.planted.secrets))}

    def trained_canaries(self) -> Canaries:
        """The canaries that are among the records that were trained on, and how often each is."""
        planted = self.planted
        if planted is None:
            raise BadInput(
                "no canaries were planted; screen the corpus with --canaries audit (or crt, sdp, jft), and train again"
            )
        options = self.prepared.plan.options
        share = 0.0 if options.validation else options.validation_share
        copies, public = np.zeros(len(planted.secrets), int), 0
        for part in ("public", "private"):
            names = list(_groups(self.screened, part))
            for row in split_rows(self.screened, part, share)[0]:
                canary = self._canary_names.get(names[row])
                if canary is not None:
                    copies[canary] += 1
                    public += part == "public"
        kept = [i for i, count in enumerate(copies) if count]
        if not kept:
            raise BadInput(
                "every canary is among the held-out records, so that none was trained on; plant more of them"
            )
        return Canaries(
            planted.format,
            tuple(planted.secrets[i] for i in kept),
            None if planted.present is None else tuple(planted.present[i] for i in kept),
            planted.drawn,
            planted.policy,
            tuple(int(copies[i]) for i in kept),
            public,
        )

    # -- what is proven -----------------------------------------------------------------------------------------------

    def ceilings(self, canaries: Canaries) -> tuple[Ceilings | None, str]:
        """What the certificate allows an attack on one of these canaries, and about how many changed records that is; or why nothing.

        *Formal guarantees.* The curve is that of all records that change when every copy of one canary is masked. There is
        none for canaries in the public part, for S-DP (a missed secret has no protection), or where JFT's first phase saw
        what its redaction missed.
        """
        accounts = self.accounts
        if accounts is None:
            return None, "the run has no certificate"
        if canaries.public and self.prepared.plan.public_is_public:
            return None, "some canaries lie in the public part, for which nothing is promised"
        if accounts.setting.method == "sdp":
            return None, "selective privacy promises nothing for a secret that the policy misses"
        if accounts.conditional and canaries.policy != "found":
            return None, "the first phase of jft may have seen these canaries without noise"
        k = accounts.setting.k_repeated(max(canaries.copies))
        if k > MOST_COPIES or (k != 1 and accounts.groups == (1,)):
            return None, f"no curve is computed for {k} changed records"
        return Ceilings(accounts.curve(k, accounts.phase)), many(k, "changed record")


def _groups(screened: Screened, part: str) -> Iterator[str]:
    for batch in screened.batches(part, ("group",)):
        yield from batch["group"].to_pylist()


def _hashes(screened: Screened, column: str) -> NDArray[np.int64]:
    found = (hash(text) for batch in screened.batches("private", (column,)) for text in batch[column].to_pylist())
    return np.fromiter(found, np.int64)


def _apart(findings: Sequence[Finding]) -> Iterator[tuple[int, int, str]]:
    """Findings in their order; of overlapping ones the first and longest."""
    end = 0
    for one in sorted(findings, key=lambda one: (one.start, -one.end)):
        if one.start >= end and one.end > one.start:
            yield one.start, one.end, one.type
            end = one.end
