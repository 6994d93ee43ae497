"""Text from a trained model: a run or model folder and a prompt come in, continuations go out, whole or as they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import BadInput, ConfideError

Stream = Callable[[str], None]
COLDEST = 1e-6  # below it scores that are divided by the temperature overflow
MOST_TEXTS = 1_000


def generate(
    run_or_model_dir: Path | str,
    prompt: str = "",
    *,
    max_new_tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    num_return_sequences: int = 1,
    greedy: bool = False,
    seed: int | None = None,
    chat: bool = False,
    stream: Stream | None = None,
) -> list[str]:
    """Continuations of the prompt, without it; an empty prompt starts from the beginning of a record.

    `stream` is called with each new piece of text. `chat` sends the prompt as a user's message, in the tokenizer's
    template. Without a seed every call draws anew.
    """
    check_options(max_new_tokens, temperature, top_k, top_p, num_return_sequences, greedy, seed, stream)
    folder = _model_folder(Path(run_or_model_dir))
    try:
        import torch

        from .models import load_trained, longest
        from .models.loading import quiet
    except ImportError as error:
        raise ConfideError(
            f"generating text needs {error.name}; install it with: pip install 'confide[train]'"
        ) from None

    model, tokenizer = load_trained(folder)
    if not model.can_generate():
        raise BadInput(f"{folder}: the model is a classifier and writes no text")
    ids = _prompt_ids(tokenizer, prompt, chat)
    most = longest(model)
    room = max_new_tokens if most is None else most - len(ids)
    if room < 1:
        raise BadInput(f"the prompt has {len(ids)} tokens, which is all that the model can see; shorten it")
    choice: dict[str, Any] = {"do_sample": False}
    if not greedy:
        choice = {"do_sample": True, "temperature": temperature, "top_k": top_k or 0, "top_p": top_p or 1.0}
    streamer = _Streamer(tokenizer, stream) if stream else None
    # Quiet: transformers drops a mask that is all ones, and then warns of texts that ended before others for want of one.
    with torch.random.fork_rng(enabled=seed is not None), quiet():
        if seed is not None:
            torch.manual_seed(seed)
        given = torch.tensor([ids], device=model.device)
        made = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=min(max_new_tokens, room),
            num_return_sequences=num_return_sequences,
            pad_token_id=tokenizer.pad_token_id,
            streamer=streamer,
            **choice,
        )
    return [text_of(tokenizer, row[len(ids) :]) for row in made.tolist()]


def check_options(
    max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None, sequences: int, greedy: bool,
    seed: int | None, stream: Stream | None,
) -> None:  # fmt: skip
    """Refuse choices that cannot be, by the names that they have on the command line."""
    if max_new_tokens < 1:
        raise BadInput(f"--max-new-tokens must be at least 1, got {max_new_tokens}")
    if not COLDEST <= temperature < float("inf"):
        raise BadInput(
            f"--temperature must be at least {COLDEST:g} and finite, got {temperature}; for the likeliest text take --greedy"
        )
    if top_k is not None and top_k < 1:
        raise BadInput(f"--top-k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise BadInput(f"--top-p must be above 0 and at most 1, got {top_p}")
    if not 1 <= sequences <= MOST_TEXTS:
        raise BadInput(
            f"--number must be from 1 to {MOST_TEXTS:,}, got {sequences}; they are made side by side: call it again for more"
        )
    if sequences > 1 and greedy:
        raise BadInput("--greedy text is always the same: leave --number at 1, or leave out --greedy")
    if sequences > 1 and stream is not None:
        raise BadInput("only one text can be shown while it is made: leave --number at 1, or do not stream")
    if seed is not None and not 0 <= seed < 2**63:
        raise BadInput(f"--seed must be at least 0 and below 2^63, got {seed}")


def _model_folder(folder: Path) -> Path:
    for candidate in (folder / "model", folder):
        if (candidate / "config.json").is_file():
            return candidate
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; name a run of `confide train` or a model's folder")
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; name a run of `confide train` or a model's folder")
    if (folder / "SENSITIVE").is_file():
        raise BadInput(f"{folder} is a screened corpus; name a run that `confide train` made of it")
    raise BadInput(
        f"{folder}: no model there (model/config.json); has the run finished? `confide train --resume` goes on"
    )


def _prompt_ids(tokenizer: Any, prompt: str, chat: bool) -> list[int]:
    """As in training: bos in front, and special tokens in the prompt are ordinary letters; a template has its own bos."""
    from .models.templates import Unrendered, render
    from .models.tokens import encode, first_id

    if not chat:
        return [first_id(tokenizer), *encode(tokenizer, prompt)]
    if not tokenizer.chat_template:
        raise BadInput("the model's tokenizer has no chat template; leave out --chat")
    try:
        (text,) = render(tokenizer, [[{"role": "user", "content": prompt}]], add_generation_prompt=True)
    except Unrendered as problem:
        raise BadInput(
            f"the chat template of the model's tokenizer cannot be used ({problem}); leave out --chat"
        ) from None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def text_of(tokenizer: Any, ids: list[int]) -> str:
    """The text of ids without framing and padding; masks and placeholders are part of what the model says."""
    frame = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    text: str = tokenizer.decode(
        [one for one in ids if one not in frame], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


class _Streamer:
    """Hands on text as soon as it can no longer change: bytes of a letter that is not complete are held back."""

    def __init__(self, tokenizer: Any, stream: Stream) -> None:
        self._tokenizer, self._stream = tokenizer, stream
        self._ids: list[int] = []
        self._shown, self._prompt_seen = 0, False

    def put(self, value: Any) -> None:
        if self._prompt_seen:
            self._ids += value.flatten().tolist()
            text = text_of(self._tokenizer, self._ids)
            self._show(text.rstrip("\ufffd"))
        self._prompt_seen = True  # transformers hands over the prompt first

    def end(self) -> None:
        self._show(text_of(self._tokenizer, self._ids))

    def _show(self, text: str) -> None:
        if len(text) > self._shown:
            self._stream(text[self._shown :])
            self._shown = len(text)
