"""The choices of an attack: what a user says comes in, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from ..accounting.events import check_count
from ..errors import BadInput

ATTACKS = ("exposure", "membership", "extraction", "audit")
# An attack and its size in; what to call with the work done, out
Progress = Callable[[str, int | None], Callable[[int], object]]
Show = Callable[[str, str], object]  # a type of secret, and one that was extracted


@dataclass(frozen=True)
class Options:
    """How to attack. `secrets`: the policy that says what the private part's secrets are, if not what screening found."""

    only: tuple[str, ...] | None = None  # None: all that can be made; those that are named must be made
    samples: int = 1000
    reference: str | None = None
    held_out: str | None = None
    secrets: str | None = None
    papers: bool = False
    white_box: bool = False
    guesses: int | None = None
    also: tuple[str, ...] = ()
    seed: int | None = None
    progress: Progress = field(default=lambda name, total: lambda done: None, repr=False)
    show: Show | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("only", "also"):
            value = getattr(self, name)
            if isinstance(value, str | list):  # as in a configuration
                names = value.split(",") if isinstance(value, str) else value
                object.__setattr__(self, name, tuple(str(one).strip() for one in names if str(one).strip()))
        if self.only is not None and (
            not isinstance(self.only, tuple) or not self.only or not set(self.only) <= set(ATTACKS)
        ):
            raise BadInput(f"the attacks are {', '.join(ATTACKS)}; name some of them with --only, separated by commas")
        check_count("--samples", self.samples, low=20, high=10**6)
        if self.guesses is not None:
            check_count("--guesses", self.guesses, low=1)
        if self.seed is not None:
            check_count("--seed", self.seed, low=0, high=2**63 - 1)
        for name in ("reference", "held_out", "secrets"):
            if not isinstance(getattr(self, name), str | None):
                raise BadInput(f"--{name.replace('_', '-')} must be a name or a path")
        for name in ("papers", "white_box"):
            if not isinstance(getattr(self, name), bool):
                raise BadInput(f"--{name.replace('_', '-')} is true or false")
        if not isinstance(self.also, tuple) or not all(isinstance(one, str) for one in self.also):
            raise BadInput("--also names the folders of runs")
        for name in ("white_box", "also", "guesses"):
            if getattr(self, name) and not self.wants("audit"):
                raise BadInput(f"--{name.replace('_', '-')} belongs to the audit, which --only leaves out")

    def wants(self, attack: str) -> bool:
        return self.only is None or attack in self.only

    def to_plain(self) -> dict[str, Any]:
        """What decides the attacks, for attacks.json."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("progress", "show")}


def tried(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an attack found, or why it could not be made; one that cannot be made does not keep others from being tried."""
    try:
        return make()
    except BadInput as error:
        return {"skipped": str(error)}
