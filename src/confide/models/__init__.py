"""Models and tokenizers: the LSTM as a Hugging Face model, loading without remote code, vocabularies of public text only."""

from __future__ import annotations

import os

from ..errors import ConfideError

# Before transformers is imported: nothing is reported to the hub, and it is asked for files only.
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["DISABLE_SAFETENSORS_CONVERSION"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import huggingface_hub.constants as _hub
    import torch as _torch  # noqa: F401
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
except ImportError as error:
    raise ConfideError(f"models need {error.name}; install it with: pip install 'confide[train]'") from None

from .loading import build, check_sums, load_trained, longest, save, save_tokenizer
from .lora import Lora
from .lstm import LstmConfig, LstmForCausalLM, LstmModel, LstmState
from .tokens import add_placeholders, encode, load_tokenizer, prepare

_hub.HF_HUB_DISABLE_TELEMETRY = True  # it may have been imported before this file
AutoConfig.register(LstmConfig.model_type, LstmConfig, exist_ok=True)
AutoModel.register(LstmConfig, LstmModel, exist_ok=True)
AutoModelForCausalLM.register(LstmConfig, LstmForCausalLM, exist_ok=True)

__all__ = [
    "Lora",
    "LstmConfig",
    "LstmForCausalLM",
    "LstmModel",
    "LstmState",
    "add_placeholders",
    "build",
    "check_sums",
    "encode",
    "load_tokenizer",
    "load_trained",
    "longest",
    "prepare",
    "save",
    "save_tokenizer",
]
