"""A name or public text comes in, a tokenizer goes out: a pretrained one, or a byte-level BPE; one id for masked secrets, one for padding.

Nothing here takes private text: a vocabulary is read off its corpus, no noise covers it, and a rare name would become a
token of the published tokenizer.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import BadInput, Refused
from ..records import MASK

END, PAD = "<|endoftext|>", "<|pad|>"
BYTES = 256
PATIENCE = 5  # seconds in which the hub should answer
MOST_LAYERS = 1000
BUILT_IN = ("lstm", "gpt2-tiny")  # models that are made here and come without a tokenizer
MOST_GROWTH = 64  # signs that a tokenizer may write in place of one
LARGEST_JSON = 64 << 20  # bytes of a configuration
_RUNS = {".bin", ".ckpt", ".dill", ".h5", ".joblib", ".pickle", ".pkl", ".pt", ".pth", ".py", ".pyc", ".so"}
_KNOWN = {  # what a folder without tokenizer_config.json may call its special tokens
    "bos_token": ("<|endoftext|>", "<|begin_of_text|>", "<s>"),
    "eos_token": ("<|endoftext|>", "<|end_of_text|>", "</s>"),
    "unk_token": ("<unk>", "[UNK]"),
    "pad_token": ("<|pad|>", "<pad>", "[PAD]"),
    "mask_token": (MASK, "<mask>", "[MASK]"),
}


def load_tokenizer(
    spec: str | None,
    model_spec: str,
    *,
    public_texts: Callable[[], Iterator[str]] | None = None,
    vocabulary_size: int = 8192,
    external: Path | None = None,
) -> tuple[Any, str]:
    """A prepared tokenizer, and where its vocabulary comes from: "pretrained", "public" or "external".

    `spec` is a hub name or a folder. Without one the model's own is taken; a model that is made here has none, and its
    vocabulary is trained on the public part of the corpus, or on `external`, a file that the user declares public.

    *Formal guarantees.* The vocabulary depends on `spec`, `model_spec`, `external` and the public part alone.
    """
    built_in = model_spec.partition(":")[0] in BUILT_IN
    if spec is not None and external is not None:
        raise BadInput("a tokenizer and a file to train one on were both given; name only one of them")
    if spec is not None:
        return prepare(pretrained(spec)), "pretrained"
    if external is not None:
        return train_bpe(texts_of(external), vocabulary_size, f"{external} holds no text"), "external"
    if not built_in:
        return prepare(pretrained(model_spec)), "pretrained"
    nothing = (
        "the public part is empty, and a vocabulary is never trained on private text; give --tokenizer NAME|DIR for a pretrained one or "
        "--vocabulary-from FILE with text that is public, or screen again with --conservative allowlist, which leaves plain records public"
    )
    return train_bpe(public_texts() if public_texts else (), vocabulary_size, nothing), "public"


def texts_of(file: Path, left_out: Counter[str] | None = None) -> Iterator[str]:
    """The texts of an outside file, in any format that a corpus may have; `left_out` counts why other rows hold none."""
    from .. import readers, records
    from ..sources import sources

    for chunk in readers.chunks(sources([str(file)]), records.Fields(), text_as="paragraph"):
        rows, bad = records.parse(chunk)
        if left_out is not None:
            left_out.update(one.reason for one in bad)
        for row in rows:
            yield row.record.text


def train_bpe(texts: Iterable[str], vocabulary_size: int, nothing: str) -> Any:
    """A byte-level BPE of the texts, which must be public; `nothing` is said if there are none. Any text can be encoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    specials = [END, PAD, MASK]
    if vocabulary_size < BYTES + len(specials):
        raise BadInput(f"a byte-level vocabulary has at least {BYTES + len(specials)} tokens, not {vocabulary_size}")
    pieces = (
        piece for text in texts for piece in text.split(MASK) if piece.strip()
    )  # the mark is one token, not letters
    first = next(pieces, None)
    if first is None:
        raise Refused(nothing)
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.chain([first], pieces), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        mask_token=MASK,
        clean_up_tokenization_spaces=False,
    )


def pretrained(spec: str) -> Any:
    """The tokenizer of a hub name or folder; never by code that comes with it."""
    from transformers import AutoTokenizer

    folder = Path(spec).expanduser()
    _refuse_growth(folder / "tokenizer.json")
    if folder.is_dir() and not any((folder / name).is_file() for name in ("tokenizer_config.json", "config.json")):
        return _bare(folder)
    try:
        with unpanicked():
            found = AutoTokenizer.from_pretrained(**source(spec), use_fast=True)
    except BadInput:
        raise
    except Exception as error:  # tokenizers raise what they like
        raise BadInput(why(spec, error, "tokenizer")) from None
    if set(found.get_vocab()) <= set(found.all_special_tokens):  # transformers makes an empty one up
        raise BadInput(
            f"{spec}: no tokenizer (tokenizer.json, or vocab.json and merges.txt); name one with --tokenizer"
        )
    if not found.is_fast:
        raise BadInput(f"{spec}: its tokenizer has no fast version (tokenizer.json); name another one with --tokenizer")
    return found


def source(spec: str) -> dict[str, Any]:
    """What `from_pretrained` is told of a hub name or folder: never remote code, and no connection for a folder."""
    folder = Path(spec).expanduser()
    here = folder.is_dir()
    if here:
        refuse_code(folder)
    return {
        "pretrained_model_name_or_path": str(folder) if here else spec,
        "local_files_only": here or os.environ.get("HF_HUB_OFFLINE") == "1" or not _hub_answers(),
        "trust_remote_code": False,
    }


def refuse_code(folder: Path) -> None:
    """Refuse a folder with anything in it that could run when a model is loaded: code, a pointer to code, or pickles.

    *Formal guarantees.* Names and three JSON files are looked at, and nothing is loaded. Links count as what they are called.
    """
    try:
        inside = itertools.chain(folder.iterdir(), folder.glob("custom_generate/*"))
        names = sorted(str(path.relative_to(folder)) for path in inside if path.suffix.lower() in _RUNS)
        if names:
            raise BadInput(
                f"{folder}: {names[0]} is code or a pickle, which can run code; only safetensors and JSON are read. Load the "
                "model where you trust it, save it again with save_pretrained(), and name that folder"
            )
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
            if (folder / name).is_file() and (folder / name).stat().st_size > LARGEST_JSON:
                raise BadInput(f"{folder}: {name} is larger than {LARGEST_JSON >> 20} MB, so it is no configuration")
            if (folder / name).is_file() and name.endswith(".json"):
                _refuse_pointers(folder, name)
    except OSError as error:
        raise BadInput(f"cannot read the model folder {folder}: {error.strerror}") from None


def _refuse_pointers(folder: Path, name: str) -> None:
    """Refuse a configuration that points to code, wherever in it, or describes a model that nobody has."""
    try:
        waiting: list[Any] = [json.loads((folder / name).read_text("utf-8"))]
    except (ValueError, RecursionError):
        raise BadInput(f"{folder}: {name} is not JSON; bring it back, or save the model again") from None
    if not isinstance(waiting[0], dict):
        raise BadInput(f"{folder}: {name} holds no settings; bring it back, or save the model again")
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        if not isinstance(part, dict):
            continue
        waiting += part.values()
        if "auto_map" in part:
            raise BadInput(
                f"{folder}: {name} names code of its own (auto_map), which is never run; take a model that transformers itself "
                "knows, and delete the line auto_map"
            )
        for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
            if not (part.get(key) is None or part[key] in ("eager", "sdpa")):
                raise BadInput(
                    f"{folder}: {name} asks for another {key} than eager and sdpa, which may be code; delete that line"
                )
        for key in ("n_layer", "num_hidden_layers", "num_layers", "n_layers"):
            if isinstance(part.get(key), int | float | str) and not (
                isinstance(part[key], int) and 0 <= part[key] <= MOST_LAYERS
            ):
                raise BadInput(f"{folder}: {name}: {key} is a whole number, at most {MOST_LAYERS:,}")


@lru_cache(maxsize=1)
def _hub_answers() -> bool:
    """Whether the hub answers, through a proxy if there is one; asked once, since its client tries again for a minute."""
    from huggingface_hub import constants, get_session

    answered: list[int] = []

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever it is: files that are already here can still be taken
            answered.append(get_session().head(constants.ENDPOINT, timeout=PATIENCE).status_code)

    asking = threading.Thread(target=ask, daemon=True)  # finding an address knows no time limit of its own
    asking.start()
    asking.join(2 * PATIENCE)
    return bool(answered)


def _bare(folder: Path) -> Any:
    """A folder with tokenizer.json, or the vocab.json and merges.txt of a byte-level BPE such as GPT-2's, and no more."""
    from transformers import PreTrainedTokenizerFast

    try:
        with unpanicked():
            backend = _backend(folder)
    except BadInput:
        raise
    except Exception:  # the library has no error of its own
        raise BadInput(f"{folder}: its tokenizer files cannot be read") from None
    vocabulary = backend.get_vocab()
    named = {role: next((name for name in names if name in vocabulary), None) for role, names in _KNOWN.items()}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **{role: name for role, name in named.items() if name},
    )


def _backend(folder: Path) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if (folder / "tokenizer.json").is_file():
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    if not ((folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()):
        raise BadInput(f"{folder}: no tokenizer (tokenizer.json, or vocab.json and merges.txt)")
    backend: Any = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _refuse_growth(file: Path) -> None:
    """Refuse a tokenizer that writes many signs in place of one, again and again: a letter would take all memory."""
    if not file.is_file():
        return
    try:
        rules = json.loads(file.read_text("utf-8"))
        waiting, growth = [rules.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")], 1
        while waiting:
            part = waiting.pop()
            waiting += part if isinstance(part, list) else part.values() if isinstance(part, dict) else ()
            if isinstance(part, dict) and part.get("type") in ("Replace", "Prepend"):
                nothing = part.get("pattern") in ({"String": ""}, {"Regex": ""})
                growth *= MOST_GROWTH + 1 if nothing else max(1, len(part.get("content") or part.get("prepend") or ""))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        raise BadInput(f"{file} cannot be read; bring it back from where it came") from None
    if growth > MOST_GROWTH:
        raise BadInput(f"{file} writes more than {MOST_GROWTH} signs in place of one; take another tokenizer")


@contextlib.contextmanager
def unpanicked() -> Iterator[None]:
    """A panic of the tokenizers library is no `Exception`, and would pass by everyone; here it is a refusal, without its words."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise BadInput("the tokenizer fails on a text; take another one, or bring its files back") from None


def why(spec: str, error: Exception, what: str) -> str:
    """Why a tokenizer or model could not be loaded, in one line."""
    if "ignore_mismatched_sizes" in str(error):
        return f"{spec}: its configuration and its weights do not fit together; bring both back from where they came"
    if "trust_remote_code" in str(error):
        return f"{spec}: this {what} needs code of its own, which is never run; take one that transformers itself knows"
    if isinstance(error, ImportError):
        return f"{spec}: its {what} needs a package that is not installed: {_first_line(error)}"
    if not Path(spec).expanduser().exists() and isinstance(error, OSError):
        near = difflib.get_close_matches(spec.partition(":")[0], BUILT_IN, n=1)
        if near:
            return f"{spec}: no such folder, and no model that is made here; did you mean {near[0]}?"
        return (
            f"{spec}: no such folder, and the model hub cannot be reached or does not know it; give the path of a folder, or check "
            "the name and the connection"
        )
    return f"{spec}: cannot load the {what}: {_first_line(error)}; if its files are damaged, bring them back from where they came"


def _first_line(error: Exception) -> str:
    if not isinstance(error, OSError | ValueError):  # a library's own mistake says nothing to a reader
        return type(error).__name__
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def prepare(tokenizer: Any) -> Any:
    """Make sure of a mask token, the tokenizer's own or one added `<MASK>`, and of a padding token; again changes nothing."""
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": MASK})
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is not None:
            tokenizer.pad_token = tokenizer.eos_token  # needs no row of its own: padding is neither read nor predicted
        else:
            tokenizer.add_special_tokens({"pad_token": PAD})
    return tokenizer


def encode(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text without framing: `<MASK>` is the mask id, and other special tokens in it are ordinary letters."""
    ids: list[int] = []
    for number, piece in enumerate(text.split(MASK)):
        if number:
            ids.append(tokenizer.mask_token_id)
        if piece:
            with unpanicked():
                ids += tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return ids


def first_id(tokenizer: Any) -> int:
    """The id that every causal record begins with: bos, or eos for a tokenizer that has none."""
    found = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if found is None:
        raise BadInput("the tokenizer has no token for the beginning or the end of a text, so it fits no causal model")
    return int(found)


def add_placeholders(tokenizer: Any, types: Iterable[str]) -> dict[str, int]:
    """One special token for each type of secret, `<name>` for NAME, as the anonymized baseline wants; again changes nothing."""
    from tokenizers import AddedToken

    names = {kind: f"<{kind.strip().lower().replace(' ', '_')}>" for kind in sorted(set(types))}
    if "<>" in names.values():
        raise BadInput("a type of secret has no name, so that no placeholder can stand for it")
    taken = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token, tokenizer.mask_token}
    for kind, name in names.items():
        if name in taken:
            raise BadInput(
                f"the type {kind} would become {name}, which the tokenizer uses for something else; rename it"
            )
    fresh = dict.fromkeys(names.values())
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in fresh], special_tokens=True)
    return {kind: int(tokenizer.convert_tokens_to_ids(name)) for kind, name in names.items()}


def room(tokenizer: Any) -> int:
    """How many rows an embedding needs for every id; the ids of some tokenizers have gaps."""
    return int(max(tokenizer.get_vocab().values())) + 1


def own_vocabulary(tokenizer: Any) -> dict[str, int]:
    """The vocabulary without tokens that were added afterwards, by us or by the model's makers."""
    added = set(tokenizer.added_tokens_decoder)
    return {token: number for token, number in tokenizer.get_vocab().items() if number not in added}
