"""What a run takes besides its records (a vocabulary, validation text, weights) must not come from those records: options in, or a refusal."""

from __future__ import annotations

import contextlib
import glob
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput, Refused
from ..plain_yaml import CONFIG, run_config
from ..screening.screened import Screened
from .options import Options, option

TRAINED_ON = "confide_trained_on"  # in a model's configuration
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
    """Raise if a run on this very corpus made the weights or the vocabulary: this run's ledger would not count it.

    *Formal guarantees.* It goes by the run in which they lie, and by what a model's configuration says it was trained on: a keyed digest
    of the screened corpus, which goes with every copy. A copy without it, or of a run on another screening of the same text, is the
    user's word, which the certificate prints as an assumption.
    """
    if not options.private:
        return
    for name in ("model", "tokenizer"):
        if name == "model" and options.from_scratch and (options.tokenizer or options.vocabulary_from):
            continue  # its configuration alone is taken
        what = option(name) + ("'s vocabulary" if name == "model" and options.from_scratch else "")
        path = Path(str(getattr(options, name))).expanduser().resolve()
        for folder in (path, *path.parents) if path.exists() else ():
            found: dict[str, Any] = {}
            if (folder / CONFIG).is_file():
                with contextlib.suppress(BadInput):  # of something else
                    found = run_config(folder)
            if folder == path:
                refuse_seen(_trained_on(path), screened, what)
            texts = found.get("corpus")
            same = set(map(str, texts if isinstance(texts, list) else ())) & set(screened.manifest.get("corpus", ()))
            if same or found.get("digest") == screened.manifest["digest"]:
                raise _own(what)


def refuse_seen(digests: Sequence[str], screened: Screened, what: str) -> None:
    """Raise if a model was trained on this very corpus, by what its configuration says."""
    if screened.manifest["digest"] in digests:
        raise _own(what)


def trained_on(config: Any) -> list[str]:
    """What a model's configuration, an object or plain, says it was trained on: digests of screened corpora."""
    found = config.get(TRAINED_ON) if isinstance(config, dict) else getattr(config, TRAINED_ON, None)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _trained_on(folder: Path) -> list[str]:
    try:
        return trained_on(json.loads((folder / "config.json").read_bytes()))
    except (OSError, ValueError, RecursionError):
        return []  # of something else, or refused when it is read


def _own(what: str) -> Refused:
    return Refused(
        f"{what} comes from a run on these very records, which this run's ledger does not count; start from a model that has not seen them"
    )


def _screened(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() and (folder / "SENSITIVE").is_file()


def _files(given: str) -> list[Path]:
    """The files that a path, a folder or a pattern stands for; none for an address elsewhere."""
    found = [Path(one).resolve() for one in glob.glob(os.path.expanduser(given))]
    below = [Path(top, name) for one in found if one.is_dir() for top, _, names in os.walk(one) for name in names]
    return [*found, *below]
