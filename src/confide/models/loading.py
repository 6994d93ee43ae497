"""A name or a folder comes in, a model goes out: the LSTM, a small GPT-2, or any Hugging Face model that needs no code of its own; and back to a folder.

Only configurations and safetensors are read, never pickles. What is random comes from a public seed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from ..errors import BadInput, ConfideError
from ..rundir import sha256_of
from .built_in import built_in, made, name_tokens
from .lora import Lora, adapted
from .lstm import LstmConfig
from .tokens import BUILT_IN, own_vocabulary, pretrained, room, source, why

TASKS = ("causal", "classify")
SUMS = "SHA256SUMS"
SMALLER = 0.9  # a pretrained model may have some more rows than its tokenizer has tokens, not this many
# What a model may say of how its texts are drawn: kind, least and most. Anything else is left out: beams, for one, take any memory.
TASTE: dict[str, tuple[type, float, float]] = {
    "do_sample": (bool, 0, 1),
    "temperature": (float, 0, 1e6),
    "top_k": (int, 0, 1e9),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "typical_p": (float, 1e-6, 1),
    "repetition_penalty": (float, 1e-6, 1e6),
    "max_length": (int, 0, 1e9),
    "max_new_tokens": (int, 0, 1e9),
    "bos_token_id": (int, -1, 1e9),
    "eos_token_id": (int, -1, 1e9),
    "pad_token_id": (int, -1, 1e9),
}
ADAPTER = "{spec} holds an adapter to another model; merge it first (PEFT's merge_and_unload) and save the whole model"
# Parts of classifiers that a language model does not have: new weights are expected.
_HEADS = frozenset({"classifier", "score", "pooler", "pre_classifier", "classification_head"})


def build(
    spec: str,
    tokenizer: Any,
    *,
    task: str = "causal",
    classes: Sequence[str] | int | None = None,
    lora: Lora | None = None,
    from_scratch: bool = False,
    seed: int = 0,
    max_length: int | None = None,
    dropout: float = 0.0,
) -> Any:
    """The model that a spec names, with room for all of the tokenizer's tokens, in single precision, ready to be trained.

    `spec`: `lstm` (one layer of 200), `gpt2-tiny`, either with `:key=value,…`, or a hub name or folder. `from_scratch`
    takes a hub model's configuration only. `classes`: how many a classifier has, or their names in order, which the
    configuration then keeps. `max_length` is refused if the model cannot see as many tokens.

    *Formal guarantees.* Weights depend on the named model, the tokenizer and the seed, all public.
    """
    if task not in TASKS:
        raise BadInput(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    labels = _labels(classes) if task == "classify" else {}
    if not 0 <= dropout < 1:
        raise BadInput(f"dropout must be at least 0 and below 1, got {dropout}")
    name, _, given = spec.partition(":")
    with _seeded(seed), quiet():
        if name in BUILT_IN:
            model = built_in(name, given, tokenizer, task, labels, max_length, dropout)
        else:
            config = _config(spec, task, labels, dropout)
            if from_scratch:
                model = made(_scratch, spec, {"config": config, "tokenizer": tokenizer, "task": task})
            else:
                model = _pretrained(spec, config, task)
                _fit(model, tokenizer, spec)
        model = model.float()
        name_tokens(model.config, tokenizer, new=from_scratch or name in BUILT_IN)
        _check(model, spec, task, max_length)
        if task == "causal":
            _name_ends(model, tokenizer)
        if lora is not None:
            model = adapted(model, lora, spec)
            for path, parameter in model.named_parameters():
                if task == "classify" and _of_head(path):  # the new head is trained as well
                    parameter.requires_grad_(True)
        return model


def _labels(classes: Sequence[str] | int | None) -> dict[str, Any]:
    """Classes as a configuration keeps them; with transformers' own names if only their number is known."""
    names = [f"LABEL_{n}" for n in range(classes)] if isinstance(classes, int) else list(classes or ())
    if len(set(names)) < max(2, len(names)):
        raise BadInput("a classifier needs at least two classes, all different: name them with --classes")
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' own notices: what matters is said by an error of ours."""
    messages: Any = transformers.utils.logging
    before = messages.get_verbosity()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(before)


# -- models of the hub or of a folder ----------------------------------------------------------------------------------


def _kind(task: str) -> Any:
    return transformers.AutoModelForCausalLM if task == "causal" else transformers.AutoModelForSequenceClassification


def _where(spec: str) -> dict[str, Any]:
    """What `from_pretrained` is told, once it is clear that a path is a model's folder."""
    folder = Path(spec).expanduser()
    if folder.suffix == ".gguf":
        raise BadInput(
            f"{spec}: GGUF files hold weights for inference; name the folder of the model with its safetensors"
        )
    if folder.is_file():
        raise BadInput(f"{spec} is a file; name the folder of a model (config.json and model.safetensors)")
    if (folder / "adapter_config.json").is_file():
        raise BadInput(ADAPTER.format(spec=spec))
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise BadInput(f"{spec}: no config.json, so this is not a Hugging Face model")
    return source(spec)


def _read_config(spec: str) -> Any:
    where = _where(spec)
    try:
        return transformers.AutoConfig.from_pretrained(**where)
    except Exception as error:  # transformers and the hub raise what they like
        raise BadInput(why(spec, error, "model")) from None


def _config(spec: str, task: str, labels: dict[str, Any], dropout: float) -> Any:
    config = _read_config(spec)
    if type(config) not in _kind(task)._model_mapping:
        raise BadInput(f"{spec}: models of the type {config.model_type} cannot be trained for the task {task}")
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, (int, float)) and not isinstance(value, bool):
            setattr(config, name, 0.0 if "layer" in name else dropout)
    for name, value in labels.items():  # how many there are follows from their names
        setattr(config, name, value)
    return config


def _scratch(config: Any, tokenizer: Any, task: str) -> Any:
    """New weights for the tokenizer. Padding that is written as the end of a text is named later: its row is learned."""
    config.vocab_size = room(tokenizer)
    if tokenizer.pad_token_id != tokenizer.eos_token_id:
        config.pad_token_id = tokenizer.pad_token_id
    elif (config.pad_token_id or 0) >= config.vocab_size:
        config.pad_token_id = None
    model = _kind(task).from_config(config, trust_remote_code=False)
    _keep_taste(model, "its configuration")
    return model


def _pretrained(spec: str, config: Any, task: str) -> Any:
    where = _where(spec)
    folder = Path(where["pretrained_model_name_or_path"])
    if folder.is_dir() and not any(folder.glob("*.safetensors")):
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt")) or any(folder.glob("*.pth"))
        raise BadInput(
            f"{spec}: only pickled weights, which can run code and are not loaded; load the model where you trust it and save it "
            "again with save_pretrained(), which writes safetensors"
            if pickled
            else f"{spec}: no weights (model.safetensors); use --from-scratch to start from its configuration alone"
        )
    try:
        model, loaded = _kind(task).from_pretrained(
            **where, config=config, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        raise BadInput(why(spec, error, "model")) from None
    if getattr(model, "_hf_peft_config_loaded", False):
        raise BadInput(ADAPTER.format(spec=spec))
    missing = sorted(key for key in loaded["missing_keys"] if task == "causal" or not _of_head(key))
    if missing:
        raise BadInput(
            f"{spec}: {len(missing)} weights are missing, the first {missing[0]}; this model was not trained for the task {task}"
        )
    _keep_taste(model, f"{spec}: generation_config.json, or else config.json")
    return model


def _keep_taste(model: Any, where: str) -> None:
    """Keep of a model's own way to draw texts what is in `TASTE`; refuse values that are none."""
    if getattr(model, "generation_config", None) is None:
        return
    kept: Any = transformers.GenerationConfig()  # type: ignore[no-untyped-call]
    for name, (kind, low, high) in TASTE.items():
        value = getattr(model.generation_config, name, None)
        if value is None:
            continue
        for one in value if name == "eos_token_id" and isinstance(value, list) else [value]:
            known = isinstance(one, (int, float) if kind is float else kind) and isinstance(one, bool) == (kind is bool)
            if not (known and low <= one <= high):
                raise BadInput(
                    f"{where}: {name} is no {kind.__name__} from {low:g} to {high:g}; mend it, or delete that line"
                )
        setattr(kept, name, float(value) if kind is float else value)
    model.generation_config = kept


def _of_head(name: str) -> bool:
    return not _HEADS.isdisjoint(name.split("."))


def _fit(model: Any, tokenizer: Any, spec: str) -> None:
    """Refuse another model's tokenizer, and give added tokens rows of their own, made from the rows that are there."""
    rows, own = len(model.get_input_embeddings().weight), own_vocabulary(tokenizer)
    needed = room(tokenizer)
    if max(own.values(), default=0) >= rows:
        raise BadInput(
            f"{spec}: the tokenizer has {len(own):,} tokens and the model rows for {rows:,}; they do not belong together"
        )
    if needed < SMALLER * rows:
        raise BadInput(
            f"{spec}: the model has rows for {rows:,} tokens and the tokenizer only {needed:,}; they do not belong together. "
            "Leave out the tokenizer to take the model's own, or train from scratch"
        )
    if str(tokenizer.name_or_path) != spec:
        try:
            theirs = own_vocabulary(pretrained(spec))
        except BadInput:
            theirs = own  # the model comes without a tokenizer to compare with
        if theirs != own:
            raise BadInput(
                f"{spec}: the tokenizer gives other ids to tokens than the model's own; leave it out, or train from scratch"
            )
    if needed > rows:
        model.resize_token_embeddings(needed, mean_resizing=True)  # new rows: the mean of the pretrained ones


def _check(model: Any, spec: str, task: str, max_length: int | None) -> None:
    most = longest(model)
    if max_length is not None and most is not None and max_length > most:
        raise BadInput(f"{spec}: the model sees at most {most} tokens; --max-length {max_length} is more")
    if task == "causal" and _looks_ahead(model):
        raise BadInput(
            f"{spec}: this model sees the tokens that it is to predict, so it is no causal language model; take one that was made to "
            "continue texts, or --task classify"
        )


def _name_ends(model: Any, tokenizer: Any) -> None:
    """`generate` stops where training put the end of a record, besides the ends that the model already has."""
    settings = model.generation_config
    ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    ends = [end for end in dict.fromkeys([tokenizer.eos_token_id, *ends]) if end is not None]
    settings.eos_token_id = ends if len(ends) > 1 else ends[0] if ends else None
    settings.bos_token_id, settings.pad_token_id = model.config.bos_token_id, tokenizer.pad_token_id
    if not settings.do_sample:  # a hub model's own taste, which transformers would then refuse to save
        settings.temperature = settings.top_k = settings.top_p = settings.typical_p = None


def longest(model: Any) -> int | None:
    """How many tokens the model can see; None: no end, as with the LSTM."""
    if model.config.model_type == LstmConfig.model_type:
        return None
    found: int | None = getattr(model.config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        if (
            found is not None
            and name.endswith("position_embeddings")
            and getattr(module, "padding_idx", None) is not None
        ):
            return found - int(module.padding_idx) - 1  # RoBERTa's positions begin after its padding
    return found


def refuse_other_models(model: Any, spec: str) -> None:
    """Raise unless a model is a causal language model, which alone gives texts a probability word by word."""
    if (not hasattr(model, "lm_head") and model.get_output_embeddings() is None) or _looks_ahead(model):
        raise BadInput(
            f"{spec} is no causal language model ({type(model).__name__}): it gives no text a probability, and writes none"
        )


@torch.no_grad()
def _looks_ahead(model: Any) -> bool:
    """Whether the last token changes the logits before it."""
    training = model.training
    model.eval()
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]])
    one, other = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    model.train(training)
    change = (one - other).abs().amax(-1)
    return bool(change[:3].max() > 1e-4 * change[3])  # rounding is far below


# -- folders -----------------------------------------------------------------------------------------------------------


def save(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a plain `from_pretrained` folder, and its files' digests; LoRA is merged into the weights, in a copy."""
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
    except OSError as error:
        raise ConfideError(
            f"{folder}: the model cannot be written: {error.strerror or error}; make room or make it writable, then go on with --resume"
        ) from None


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer, and the digests of all that lies there then; a failure of the disk is an `OSError`."""
    for name in ("is_local", "local_files_only"):  # where it was read from: the same tokenizer is the same files
        tokenizer.init_kwargs.pop(name, None)
    try:
        with quiet():
            tokenizer.save_pretrained(folder)
    except Exception as error:
        if type(error) is not Exception:  # the tokenizers library says nothing more of a full disk
            raise
        raise OSError(0, str(error), str(folder)) from None
    write_sums(folder)


def write_sums(folder: Path) -> None:
    """Write the digests of a folder's files beside them, as `sha256sum` does."""
    digests = {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.name != SUMS}
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))


def check_sums(folder: Path, remedy: str = "`confide train --resume` writes the model of a run again") -> None:
    """Raise if a file is not as `save` wrote it. A folder without digests, of an older confide or another program, is taken as it is."""
    if not (folder / SUMS).is_file():
        return
    try:
        for line in (folder / SUMS).read_text("utf-8").splitlines():
            digest, name = line.split("  ", 1)
            if Path(name).name != name or sha256_of(folder / name) != digest:
                raise ValueError
    except (OSError, ValueError):
        raise BadInput(
            f"{folder} is damaged: its files are not those that were written, as {SUMS} says; bring them back from a backup, or {remedy} "
            f"(if you changed them yourself, remove {SUMS})"
        ) from None


def load_trained(folder: Path | str) -> tuple[Any, Any]:
    """The model of a folder that `save` wrote, ready to be used, and its tokenizer."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder}: no model there (config.json); name a run or the folder of a model")
    check_sums(folder)
    with quiet():
        config = _read_config(str(folder))
        task = "classify" if any("Classification" in name for name in config.architectures or ()) else "causal"
        return _pretrained(str(folder), config, task).eval(), pretrained(str(folder))
