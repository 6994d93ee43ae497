"""A token classifier as a policy: one record's text in, the words to which a neural model gives a tag out.

`scores` is CRT's policy, the predicted tags with a score of at least 0.3; `scores-conservative` is its π_c, every tagged
word and every untagged one of which the model is less than 0.9 sure. The model runs on one record at a time, on one
thread and without padding, so that scores depend on nothing but the record's text (guarantees §3).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .base import Finding, Policy, register
from .spacy_levels import clean

TAGGED = 0.3  # CRT: π takes predicted tags from this score on
UNTAGGED = 0.9  # CRT: π_c takes untagged words below this score
UNSURE = "UNSURE"  # the type of an untagged word of which the model is not sure
WINDOW = 512  # tokens that the model sees at once, if it can see as many

_ARGUMENT = ":FOLDER"


class _Classifier(Policy):
    """A model that tags words. Long records are read in windows of fixed size that overlap by a quarter."""

    def __init__(self, folder: str | None = None) -> None:
        if not folder:
            raise BadInput(
                f"the policy {self.name} needs a model: {self.name}{_ARGUMENT}, the folder of a Hugging Face token classifier or the "
                "name of one in the local cache"
            )
        self._tokenizer, self._model, self._window = _load(folder)

    def takes(self, tag: str, score: float) -> tuple[str, float] | None:
        """The type of the finding for a token with this predicted tag and score, and how sure it is; or None."""
        raise NotImplementedError

    def find(self, text: str) -> list[Finding]:
        """A word is found if one of its tokens is, in any window; neighbours of one type are one finding."""
        found: list[Finding] = []
        for tokens in self._windows(clean(text)):
            for word, tag, score in self._tags(tokens):
                start, end = _trimmed(text, *word)
                taken = self.takes(tag, score)
                if taken is None or start >= end:
                    continue
                kind, sure = taken
                last = found[-1] if found else None
                if last and last.type == kind and last.start <= start and not text[last.end : start].strip():
                    found[-1] = last._replace(end=max(end, last.end), score=max(sure, last.score))
                else:
                    found.append(Finding(start, end, kind, self.name, sure))
        return found

    def _windows(self, text: str) -> Iterator[Any]:
        """The record's tokens, window after window, each beginning at a fixed number of tokens."""
        encoded = self._tokenizer(
            text,
            truncation=True,
            max_length=self._window,
            stride=self._window // 4,
            return_overflowing_tokens=True,
        )
        yield from encoded.encodings

    def _tags(self, tokens: Any) -> Iterator[tuple[tuple[int, int], str, float]]:
        """For each token of one window: the span of the word it belongs to, the predicted tag and its probability."""
        import torch

        words: dict[int, tuple[int, int]] = {}
        for word, (start, end) in zip(tokens.word_ids, tokens.offsets, strict=True):
            if word is not None:
                first, last = words.get(word, (start, end))
                words[word] = min(first, start), max(last, end)
        with torch.inference_mode(), _one_thread():
            logits = self._model(
                input_ids=torch.tensor([tokens.ids]), attention_mask=torch.ones(1, len(tokens.ids), dtype=torch.long)
            ).logits[0]
            scores, tags = logits.double().softmax(-1).max(-1)
        for word, tag, score in zip(tokens.word_ids, tags.tolist(), scores.tolist(), strict=True):
            if word is not None:
                yield words[word], self._model.config.id2label[tag], score


@register(
    "scores", "words that a neural model tags, score 0.3 or more (CRT)", argument=_ARGUMENT, needs="confide[neural]"
)
class Scores(_Classifier):
    """CRT's π: predicted tags with a score of at least 0.3."""

    name = "scores"

    def takes(self, tag: str, score: float) -> tuple[str, float] | None:
        return (_type(tag), score) if tag != "O" and score >= TAGGED else None


@register(
    "scores-conservative",
    "all words that a neural model tags, and untagged ones with a score below 0.9 (CRT)",
    argument=_ARGUMENT,
    needs="confide[neural]",
)
class ScoresConservative(_Classifier):
    """CRT's π_c: every predicted tag, and untagged words with a score below 0.9."""

    name = "scores-conservative"

    def takes(self, tag: str, score: float) -> tuple[str, float] | None:
        if tag != "O":
            return _type(tag), score
        return (UNSURE, 1 - score) if score < UNTAGGED else None


def _type(tag: str) -> str:
    """The type in a tag such as B-PER."""
    return tag[2:] if tag[1:2] in ("-", "_") else tag


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space at its ends: some tokenisers count the space before a word as part of it."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order, whatever the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=2)
def _load(given: str) -> tuple[Any, Any, int]:
    """Tokenizer, model and window size, once per process; from this machine alone, and without running its code."""
    try:
        from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer
        from transformers.utils import logging as messages
    except ImportError as error:
        raise BadInput("a neural policy needs torch and transformers: pip install 'confide[neural]'") from error

    folder = _folder(given)
    here: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    quiet: Any = messages
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, **here)
        if not any(name.endswith("ForTokenClassification") for name in config.architectures or ()):
            raise BadInput(f"{folder}: this model is not a token classifier; one that tags words is needed")
        if "O" not in config.id2label.values():
            raise BadInput(f"{folder}: no label is called O, so untagged words cannot be told apart; see id2label")
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, truncation_side="right", **here)
        model, loaded = AutoModelForTokenClassification.from_pretrained(
            folder, config=config, use_safetensors=True, output_loading_info=True, **here
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{folder}: cannot load the model or its tokenizer: {str(error).splitlines()[0]}") from error
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):  # transformers makes an empty one up
        raise BadInput(f"{folder}: no tokenizer (tokenizer.json)")
    if not tokenizer.is_fast:
        raise BadInput(f"{folder}: the tokenizer gives no offsets; a fast one (tokenizer.json) is needed")
    if loaded["missing_keys"]:
        raise BadInput(
            f"{folder}: weights are missing, so tags would be random: {', '.join(sorted(loaded['missing_keys']))}"
        )
    seen = getattr(config, "max_position_embeddings", None) or WINDOW + 2  # RoBERTa keeps two positions for itself
    return tokenizer, model.float().eval(), min(WINDOW, tokenizer.model_max_length, seen - 2)


def _folder(given: str) -> Path:
    """The folder of a model, with what it must hold; a name means a copy that is already in the local cache."""
    folder = Path(given).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(given, local_files_only=True))
        except (OSError, ValueError) as error:
            raise BadInput(f"{given}: no such folder, and no model of this name in the local cache") from error
    else:
        from ..models.tokens import refuse_code

        refuse_code(folder)
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder}: no config.json, so this is not a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise BadInput(f"{folder}: no weights in safetensors; pickled weights are not loaded, since they can run code")
    return folder
