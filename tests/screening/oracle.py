"""Screening in a few lines, for corpora of lists of units: the oracle of the stability constants (guarantees §2).

A record is a tuple of units, a unit a tuple of words; "x" and "y" are secrets, and MASK is what takes their place.
"""

from collections import Counter

MASK = "<MASK>"


def redact(unit, found):
    """Words that the policy finds become a mask; a run of masks is one."""
    out = []
    for word in unit:
        word = MASK if word in found else word
        if word != MASK or out[-1:] != [MASK]:
            out.append(word)
    return tuple(out)


def dedup(records):
    seen, out = set(), []
    for record in records:
        units = []
        for unit in record:
            units.append((MASK,) if unit in seen else unit)
            seen.add(unit)
        out.append(tuple(units))
    return out


def screen(records, found, order):
    """The screened corpus, all of it private, as a multiset of records."""
    if order == "dedup-redact":
        return Counter(tuple(redact(unit, found) for unit in record) for record in dedup(records))
    return Counter(dedup([tuple(redact(unit, found) for unit in record) for record in records]))


def mask_one(records, secret, place):
    """The neighbour in which one occurrence of the secret is masked by hand: the one with this number, or all (None)."""
    count, out = 0, []
    for record in records:
        units = []
        for unit in record:
            words = []
            for word in unit:
                hit = word == secret and (place is None or count == place)
                count += word == secret
                words.append(MASK if hit else word)
            units.append(tuple(words))
        out.append(tuple(units))
    return out


def distance(first, second):
    """How many records of equally large multisets differ."""
    return sum((first - second).values())
