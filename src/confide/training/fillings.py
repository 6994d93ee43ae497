"""Invented names, numbers and addresses, to stand where masks were: nothing comes in, the same list goes out every time."""

from __future__ import annotations

import string
from collections.abc import Callable
from datetime import date
from functools import cache
from random import Random

NUMBER = 10_000
SEED = 20_000  # of the list, which is public: it decides nothing about who gets what
FIRST, LAST = date(1950, 1, 1).toordinal(), date(2029, 12, 31).toordinal()
ALPHABET = string.ascii_uppercase + string.digits


@cache
def invented() -> tuple[str, ...]:
    """Values of eight kinds in equal numbers: full and first names, addresses, e-mails (at domains that nobody can own), phones, grouped
    numbers, codes, dates.

    *Formal guarantees.* The list is a constant of the installed Faker: no corpus, policy or option has a part in it. Kinds are mixed and not chosen by
    what a policy found, since the type of a finding is known of a detected secret and not of `<MASK>` in its place (guarantees §3).
    """
    from faker import Faker

    fake, coins = Faker("en_US"), Random(SEED)
    fake.seed_instance(SEED)

    def digits(*groups: int) -> str:
        return coins.choice(("", "-", ".", " ")).join(
            "".join(coins.choices(string.digits, k=count)) for count in groups
        )

    def address() -> str:
        inside = coins.choice(("", f" Apt. {digits(3)}", f" Suite {digits(3)}"))
        return f"{digits(coins.randint(1, 5))} {fake.street_name()}{inside}, {fake.city()}, {fake.state_abbr()} {digits(5)}"

    kinds: tuple[Callable[[], str], ...] = (
        lambda: f"{fake.first_name()} {fake.last_name()}",
        lambda: str(fake.first_name()),
        address,
        lambda: f"{fake.first_name()}.{fake.last_name()}@example.{coins.choice(('com', 'net', 'org'))}".lower(),
        lambda: digits(3, 3, 4),
        lambda: digits(*(coins.randint(2, 5) for _ in range(coins.randint(1, 3)))),
        lambda: "".join(coins.choices(ALPHABET, k=coins.randint(6, 12))),
        lambda: date.fromordinal(coins.randint(FIRST, LAST)).strftime(
            coins.choice(("%Y-%m-%d", "%m/%d/%Y", "%B %d, %Y", "%d %b"))
        ),
    )
    return tuple(kinds[number % len(kinds)]() for number in range(NUMBER))
