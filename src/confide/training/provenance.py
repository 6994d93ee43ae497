"""What a run takes besides its records (a vocabulary, validation text, weights) must not come from those records: options in, or a refusal."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path

import yaml

from ..errors import Refused
from ..screening.pipeline import Screened
from .options import Options, option

CONFIG = "config.yaml"
TEXTS = {
    "vocabulary_from": "a vocabulary is part of what is released, and never comes from private text; name outside text, or leave the option out: "
    "the vocabulary is then made from the public part, if the method has one",
    "validation": "their loss would be shown, outside of the certificate; name outside text, or leave the option out: a share of the dialogues is "
    "then held out",
}


def refuse_own_text(screened: Screened, options: Options) -> None:
    """Raise if outside text is the corpus itself, or lies in a screened folder.

    *Formal guarantees.* It goes by where files lie: the same text under another name is the user's word, which the certificate prints as
    an assumption.
    """
    if not options.private:
        return
    sources = set(screened.manifest.get("corpus", ()))
    for name, why in TEXTS.items():
        given = getattr(options, name)
        for path in _files(given) if given else ():
            inside = any(_screened(folder) for folder in (path, *path.parents))
            if inside or str(path) in sources:
                raise Refused(f"{option(name)} names text of the corpus that is trained on: {why}")


def refuse_own_weights(screened: Screened, options: Options) -> None:
    """Raise if a run on this very corpus made the weights or the vocabulary: this run's ledger would not count it."""
    if not options.private:
        return
    for name in ("model", "tokenizer"):
        path = Path(str(getattr(options, name))).expanduser().resolve()
        for config in (folder / CONFIG for folder in (path, *path.parents) if path.exists()):
            if not config.is_file():
                continue
            with contextlib.suppress(yaml.YAMLError, OSError, UnicodeDecodeError, AttributeError, TypeError):
                found = yaml.safe_load(config.read_text(encoding="utf-8"))
                same = found.get("digest") == screened.manifest["digest"]
                if same or set(found.get("corpus") or ()) & set(screened.manifest.get("corpus", ())):
                    raise Refused(
                        f"{option(name)} comes from a run on these very records, which this run's ledger does not count; start from a model "
                        "that has not seen them"
                    )


def _screened(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "SENSITIVE").is_file()


def _files(given: str) -> list[Path]:
    """The files that a path, a folder or a pattern stands for; none for an address elsewhere."""
    found = [Path(one).resolve() for one in glob.glob(os.path.expanduser(given))]
    below = [Path(top, name) for one in found if one.is_dir() for top, _, names in os.walk(one) for name in names]
    return [*found, *below]
