"""The model card parses, promises what the certificate promises, and holds nothing private."""

import json
import re

import pytest
import yaml
from markdown_it import MarkdownIt

from confide.reporting.card import card, write_card
from confide.reporting.gather import gather
from confide.reporting.sharing import shareable


@pytest.fixture(scope="module")
def text(whole):
    return card(shareable(gather(whole)))


def parts(text):
    _, front, body = text.split("---\n", 2)
    return yaml.safe_load(front), body


def seen(body):
    """What a reader sees of some Markdown, and the HTML it is made of."""
    html = MarkdownIt("commonmark").render(body)
    plain = re.sub(r"<[^>]+>", "", re.sub(r"<!--.*?-->", "", html, flags=re.S))
    for code, sign in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        plain = plain.replace(code, sign)
    return " ".join(plain.split()), html


def test_the_front_matter_is_yaml_that_hugging_face_knows(text):
    front, _ = parts(text)
    assert front["library_name"] == "transformers"
    assert front["license"] == "other"
    assert {"confide", "crt"} <= set(front["tags"])
    assert all(isinstance(tag, str) for tag in front["tags"])


def test_the_card_states_the_guarantees_with_assumptions_and_gaps(text, whole):
    plain, _ = seen(parts(text)[1])
    certificate = json.loads((whole / "certificate.json").read_text())
    for one in certificate["guarantees"]:
        if one["name"] not in ("group", "bayesian"):
            assert one["sentence"] in plain
    for one in certificate["assumptions"]:
        assert (one["text"] in plain) == (one["id"] != "evidence")
    for gap in certificate["not_promised"]:
        assert gap in plain
    assert "confide verify certificate-shareable.json" in plain
    assert certificate["ledger"]["head"] in plain


def test_hostile_names_stay_text_in_the_card(text, nasty):
    plain, html = seen(parts(text)[1])
    assert nasty in plain
    assert "<script" not in html
    assert not re.search(r"<(a|img)\b", html)


def test_a_model_without_a_certificate_is_not_called_private(make, tmp_path):
    run = make(tmp_path / "run", "plain", parts=("model",))
    front, body = parts(card(shareable(gather(run))))
    assert "differential-privacy" not in front["tags"]
    assert "**Nothing.** This model has no certificate" in body


def test_a_card_is_written_only_beside_weights_and_only_from_what_may_be_shared(make, tmp_path):
    run = make(tmp_path / "run", "plain", parts=())
    assert write_card(run, shareable(gather(run))) is None
    with pytest.raises(AssertionError, match="may be shared"):
        write_card(run, gather(run))


def test_a_base_model_is_named_only_by_its_public_name(make, tmp_path):
    for n, (model, named) in enumerate(
        {"distilgpt2": "distilgpt2", "org/m": "org/m", "/home/alice/m": "m", "lstm:a=1": None}.items()
    ):
        front, body = parts(card(shareable(gather(make(tmp_path / str(n), "plain", parts=("model",), model=model)))))
        assert front.get("base_model") == named
        assert "alice" not in body
