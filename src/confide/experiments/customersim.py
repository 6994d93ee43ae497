"""CustomerSim: simulated customer-service dialogues whose secrets are known exactly. All people are invented.

In: a seed and a number of dialogues. Out: dialogues ("SYS: …" and "USR: …" lines) with the span and type of every
secret. Written afresh from the facts that the S-DP paper gives about its corpus; unlike there, the people of different
splits are disjoint.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from faker import Faker

from ..errors import BadInput
from ..rundir import new_folder

PEOPLE = 20_000
SPLITS = {"train": (0.0, 10 / 12), "valid": (10 / 12, 11 / 12), "test": (11 / 12, 1.0)}

# In a template, {slot} is a secret of that type; everything else is public text.
OPENINGS = [
    f"Hello, I am the service assistant of the shop. {q}"
    for q in ("How may I help?", "What is it about?", "What do you need?")
]
GREETINGS = ("Hi.", "Good day.", "Hello there.")
REQUESTS = (
    "Can you tell me where my parcel is?",
    "I would like to follow my delivery, please.",
    "I bought something last week but do not know whether it was sent.",
    *(
        f"I ordered a {thing} some days ago and cannot find out where it is."
        for thing in ("kettle", "desk", "jacket", "lamp", "camera")
    ),
)
ASK = {
    "name": ("What is your full name, please?", "Please tell me your full name.", "May I ask for your full name?"),
    "phone": ("And what is your phone number?", "Please give me your phone number too."),
    "order": (
        "What is the order number?",
        "Please give me your order number too.",
        "Could you read me the order number?",
    ),
    "address": ("And the address it should go to?", "Please confirm the delivery address as well."),
}
ANSWER = {
    "name": (
        "{name}",
        "{name}.",
        "I am {name}.",
        "My name is {name}.",
        "Sure, {name}.",
        "Yes, {name}.",
        "It is {name}.",
    ),
    "phone": ("{phone}.", "It is {phone}.", "Sure, {phone}.", "{phone} is my number.", "My number is {phone}"),
    "order": ("{order}", "It is {order}.", "Yes, {order}.", "Sure, it is {order}", "The order is {order}."),
    "address": (
        "{address}.",
        "Ok, it is {address}.",
        "Yes sure, {address}.",
        "Please send it to {address}.",
        "The address is {address}.",
    ),
}
TRACKING = (
    "Your tracking number is {tracking}.",
    "You can follow the parcel with the tracking number {tracking}.",
    "Use this tracking number to follow your order: {tracking}.",
)
ENOUGH = (
    "Is there anything else?",
    "Anything else I can do?",
    "Does that answer your question?",
    "What else can I do?",
)
CONTENT = ("That is all.", "No more questions.", "All fine now.", "I have what I need.", "That is it, thanks!")
FAREWELL = ("Bye.", "See you.", "Thank you.")
GOODBYE = ("Goodbye.", "Have a good day! Bye.", "Bye.", "It was a pleasure to help you.")


@dataclass(frozen=True)
class Person:
    """An invented person."""

    name: str
    phone: str
    order: str
    address: str


@dataclass(frozen=True)
class Dialogue:
    """A dialogue, and its secrets as (start, end, type) in the text."""

    id: str
    text: str
    secrets: tuple[tuple[int, int, str], ...]


def people(seed: int, count: int = PEOPLE, tick: Callable[[], object] = lambda: None) -> list[Person]:
    """Invented people, the same for the same seed; `tick` is called for each."""
    fake = Faker("en_US")
    fake.seed_instance(seed)
    coins = random.Random(seed)
    found = []
    for _ in range(count):
        found.append(_person(fake, coins))
        tick()
    return found


def _digits(coins: random.Random, count: int) -> str:
    return "".join(coins.choices(string.digits, k=count))


def _person(fake: Faker, coins: random.Random) -> Person:
    join = coins.choice(("", "-", "."))
    phone = join.join(_digits(coins, n) for n in (3, 3, 4))
    order = "-".join(_digits(coins, n) for n in (3, 5, 4))
    return Person(f"{fake.first_name()} {fake.last_name()}", phone, order, _address(fake, coins))


def _address(fake: Faker, coins: random.Random) -> str:
    kind = coins.choices(("plain", "suite", "apartment", "military"), weights=(44, 22, 22, 11))[0]
    if kind == "military":
        post = coins.choice((f"USNV {fake.last_name()}", f"Unit {_digits(coins, 4)} Box {_digits(coins, 4)}"))
        return f"{post} {coins.choice(('APO', 'FPO', 'DPO'))} {coins.choice(('AA', 'AE', 'AP'))} {_digits(coins, 5)}"
    house = _digits(coins, coins.choice((3, 4, 5)))
    extra = {"plain": "", "suite": f" Suite {_digits(coins, 3)}", "apartment": f" Apt. {_digits(coins, 3)}"}[kind]
    return f"{house} {fake.street_name()}{extra} {fake.city()}, {fake.state_abbr(include_territories=False)} {_digits(coins, 5)}"


def dialogues(count: int, seed: int = 0, split: str = "train", crowd: list[Person] | None = None) -> Iterator[Dialogue]:
    """Dialogues of one split; people are drawn with replacement within the split and never across splits."""
    crowd = people(seed) if crowd is None else crowd
    low, high = (round(share * len(crowd)) for share in SPLITS[split])
    mine = crowd[low:high]
    coins = random.Random(f"{seed} {split}")
    for number in range(count):
        yield _dialogue(f"{split}-{number}", mine, coins)


def _dialogue(name: str, crowd: list[Person], coins: random.Random) -> Dialogue:
    person, pick = coins.choice(crowd), coins.choice
    tracking = "".join(coins.choices(string.ascii_uppercase + string.digits, k=10))
    text: list[str] = []
    secrets: list[tuple[int, int, str]] = []
    length = 0

    def say(speaker: str, *templates: str, who: Person = person) -> None:
        nonlocal length
        line = f"{speaker}: "
        for i, template in enumerate(templates):
            before, brace, rest = template.partition("{")
            line += (" " if i else "") + before
            if brace:
                slot, _, after = rest.partition("}")
                value = tracking if slot == "tracking" else str(getattr(who, slot))
                secrets.append((length + len(line), length + len(line) + len(value), slot))
                line += value + after
        text.append(line)
        length += len(line) + 1

    slot = pick(("phone", "order", "address"))
    say("SYS", pick(OPENINGS))
    say("USR", pick(GREETINGS), pick(REQUESTS))
    say("SYS", pick(ASK["name"]))
    if coins.random() < 0.01:  # the customer volunteers the next answer, too
        say("USR", pick(ANSWER["name"]), pick(ANSWER[slot]))
    else:
        say("USR", pick(ANSWER["name"]))
        say("SYS", pick(ASK[slot]))
        say("USR", pick(ANSWER[slot]))
    say("SYS", pick(TRACKING), pick(ENOUGH))
    while coins.random() < 0.01:  # or goes on with somebody else's
        say("USR", pick(ANSWER[pick(tuple(ANSWER))]), who=pick(crowd))
        say("SYS", pick(TRACKING), pick(ENOUGH))
    if coins.random() < 0.5:
        say("USR", pick(CONTENT), pick(FAREWELL))
        say("SYS", pick(GOODBYE))
    else:
        say("USR", pick(CONTENT))
    return Dialogue(name, "\n".join(text) + "\n", tuple(secrets))


def write_corpus(folder: Path, count: int, seed: int, crowd_size: int, tick: Callable[[], object]) -> dict[str, int]:
    """Write `train.jsonl`, and a tenth as many dialogues each into `valid.jsonl` and `test.jsonl`."""
    if crowd_size < 12:
        raise BadInput("--people must be at least 12, so that each split has people of its own")
    new_folder(folder)
    crowd = people(seed, crowd_size, tick)
    sizes = {"train": count, "valid": max(1, count // 10), "test": max(1, count // 10)}
    for split, size in sizes.items():
        with open(folder / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for dialogue in dialogues(size, seed, split, crowd):
                secrets = [
                    {"start": start, "end": end, "type": kind, "text": dialogue.text[start:end]}
                    for start, end, kind in dialogue.secrets
                ]
                row = {"id": dialogue.id, "text": dialogue.text, "secrets": secrets}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                tick()
    return sizes
