"""`scores`: a tiny token classifier stands in for a real one; its thresholds, its words, and that a record stands alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PreTrainedTokenizerFast,
)

from confide.errors import BadInput
from confide.policies import scores
from confide.policies.base import Finding, merged
from confide.policies.scores import Scores, ScoresConservative
from confide.records import MARK

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,@-?'"
TEXTS = [
    "Alice Moreau lives in Chicago.",
    "ok",
    f"{MARK} and {MARK}, call 212-555-0187",
    "x" * 300 + " alice@example.com",
    "the weather was fine " * 12,
]


def _tokenizer() -> PreTrainedTokenizerFast:
    """Words cut into single letters: every word has as many tokens as letters."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {word: i for i, word in enumerate(words)}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=1_000))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def _config(**changes: object) -> BertConfig:
    labels = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC"]))
    sizes = {
        "id2label": labels,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 37,
    }
    return BertConfig(vocab_size=100, max_position_embeddings=66, **{**sizes, **changes})


def _save(folder: Path, model: torch.nn.Module) -> Path:
    _tokenizer().save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = BertForTokenClassification(_config(initializer_range=0.3))
    return _save(tmp_path_factory.mktemp("model"), model)


def _findings(folder: Path, texts: list[str]) -> list[list[Finding]]:
    policies = [Scores(str(folder)), ScoresConservative(str(folder))]
    return [policy.find(text) for text in texts for policy in policies]


def test_findings_do_not_depend_on_other_texts_their_order_the_process_or_the_cores(
    folder: Path, elsewhere: Callable[[list[str], list[str]], list[list[Finding]]]
) -> None:
    together = _findings(folder, TEXTS)
    assert any(together)
    assert together == [finding for text in TEXTS for finding in _findings(folder, [text])]
    backwards = _findings(folder, TEXTS[::-1])
    assert together == [backwards[i + j] for i in reversed(range(0, len(backwards), 2)) for j in (0, 1)]
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert together == _findings(folder, TEXTS)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    assert together == elsewhere([f"scores:{folder}", f"scores-conservative:{folder}"], TEXTS)


@pytest.mark.parametrize(
    ("tag", "score", "taken", "conservative"),
    [
        ("B-PER", 0.95, ("PER", 0.95), ("PER", 0.95)),
        ("I-LOC", 0.3, ("LOC", 0.3), ("LOC", 0.3)),
        ("SECRET", 0.29, None, ("SECRET", 0.29)),
        ("O", 0.89, None, ("UNSURE", pytest.approx(0.11))),
        ("O", 0.9, None, None),
    ],
)
def test_the_papers_thresholds(folder: Path, tag: str, score: float, taken: object, conservative: object) -> None:
    assert Scores(str(folder)).takes(tag, score) == taken
    assert ScoresConservative(str(folder)).takes(tag, score) == conservative


def test_one_tagged_token_makes_the_whole_word_a_finding_and_neighbours_join(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "call alice moreau now"
    policy = Scores(str(folder))

    def tags(tokens: object) -> Iterator[tuple[tuple[int, int], str, float]]:
        """A tag for the first letter of each part of the name, none for any other."""
        seen = set()
        for word, *_ in real(tokens):
            yield word, "B-PER" if word in ((5, 10), (11, 17)) and word not in seen else "O", 0.8
            seen.add(word)

    real = policy._tags
    monkeypatch.setattr(policy, "_tags", tags)
    assert policy.find(text) == [Finding(5, 17, "PER", "scores", 0.8)]


def test_long_records_are_read_to_the_end_in_windows_that_overlap(folder: Path) -> None:
    policy = Scores(str(folder))
    text = "alice moreau " * 40
    windows = list(policy._windows(text))
    assert [len(window.ids) for window in windows[:-1]] == [64] * (len(windows) - 1)
    starts = [window.offsets[1][0] for window in windows]
    ends = [window.offsets[-2][1] for window in windows]
    assert starts[0] == 0
    assert ends[-1] == len(text.rstrip())
    assert all(start < end for start, end in zip(starts[1:], ends, strict=False))


def test_any_text_is_read_and_the_conservative_policy_covers_the_other(folder: Path) -> None:
    policies = [Scores(str(folder)), ScoresConservative(str(folder))]

    @settings(max_examples=40)
    @given(st.text(max_size=80))
    @example("")
    @example("\ud800 alice \udfff")
    @example(" \n\x00\u202e")
    def check(text: str) -> None:
        some, more = ({i for a, b in merged(policy.find(text)) for i in range(a, b)} for policy in policies)
        assert some <= more <= set(range(len(text)))

    check()


def test_folders_that_cannot_serve_are_refused_in_words(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"needs a model: scores:FOLDER, the folder of .* token classifier"):
        Scores()
    with pytest.raises(BadInput, match="no such folder, and no model of this name in the local cache"):
        Scores("someone/some-model")
    with pytest.raises(BadInput, match=r"no config\.json"):
        Scores(str(tmp_path))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(BadInput, match=r"pytorch_model\.bin is code or a pickle"):
        Scores(str(tmp_path))


def test_models_that_tag_no_words_or_lack_weights_are_refused(tmp_path: Path) -> None:
    other = _save(tmp_path / "other", BertForSequenceClassification(_config()))
    with pytest.raises(BadInput, match="not a token classifier"):
        Scores(str(other))
    headless = _save(tmp_path / "headless", BertModel(_config()))
    config = json.loads((headless / "config.json").read_text())
    (headless / "config.json").write_text(json.dumps({**config, "architectures": ["BertForTokenClassification"]}))
    with pytest.raises(BadInput, match=r"weights are missing, so tags would be random: classifier\.bias"):
        Scores(str(headless))
    unnamed = _save(tmp_path / "unnamed", BertForTokenClassification(_config(id2label={0: "LABEL_0", 1: "LABEL_1"})))
    with pytest.raises(BadInput, match="no label is called O"):
        Scores(str(unnamed))


def test_a_model_without_a_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(BadInput, match=r"no tokenizer \(tokenizer\.json\)"):
        Scores(str(tmp_path))


def test_code_that_a_model_brings_is_not_run(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    own = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own"}
    (tmp_path / "config.json").write_text(json.dumps({**config, **own}))
    (tmp_path / "own.py").write_text("raise SystemExit('code of the model was run')")
    with pytest.raises(BadInput, match=r"own\.py is code or a pickle"):
        Scores(str(tmp_path))
    (tmp_path / "own.py").unlink()
    with pytest.raises(BadInput, match="names code of its own"):
        Scores(str(tmp_path))


def test_without_the_libraries_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    scores._load.cache_clear()
    with pytest.raises(BadInput, match=r"pip install 'confide\[neural\]'"):
        Scores(str(folder))
