"""Lists of known secrets and of public words."""

import random
import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.policies import load, merged
from confide.policies.known import PREFIX
from confide.records import MARK


@pytest.fixture
def known(tmp_path):
    def make(*secrets):
        (tmp_path / "list.txt").write_text("\n".join(secrets), "utf-8")
        return load(f"known:{tmp_path / 'list.txt'}")

    return make


def found(policy, text):
    return [text[start:end] for start, end in merged(policy.find(text))]


@pytest.mark.parametrize(
    ("secret", "text", "hits"),
    [
        ("Ada Pine", "I am ADA  PINE, hello", ["ADA  PINE"]),
        ("Ada Pine", "AdaPine", ["AdaPine"]),
        ("Ada Pine", "Ada\n\tPine!", ["Ada\n\tPine"]),
        ("Ada Pine", "Adam Pine and Ada Piney", []),
        ("4000 1234", "card 40001234 or 4000 1234.", ["40001234", "4000 1234"]),
        ("40001234", "card 4000 12345", []),
        ("#a-1", "see #a-1", ["#a-1"]),
        ("pine", "ada-pine (pine)", ["pine", "pine"]),
        ("Straße", "in der STRASSE 5", ["STRASSE"]),
        ("Jos\u00e9", "Jose\u0301 was here", ["Jose\u0301"]),
        ("xy", f"xy{MARK}xy xy", ["xy"]),
        ("ab", "ab1 _ab_ ab", ["ab", "ab"]),
        ("Ada Pine", "Ada\u200bPine and Ada\u00adPine", ["Ada\u200bPine", "Ada\u00adPine"]),
        ("田中", "私は田中です", ["田中"]),
        ("brahim", "A\u0130brahim", []),
    ],
)
def test_known_secrets_are_found_in_any_case_and_spacing(known, secret, text, hits):
    assert found(known(secret, "never seen"), text) == hits


@pytest.mark.parametrize("text", ["Yours, John Smith", "John Smithson", "john smith son", "John Smithy John Smith"])
def test_an_entry_may_be_the_beginning_of_another(known, text):
    """Also at the end of the text, where there is no room for the longer one."""
    assert (
        found(known("John Smith", "John Smithson"), text)
        == {
            "Yours, John Smith": ["John Smith"],
            "John Smithson": ["John Smithson"],
            "john smith son": ["john smith son"],
            "John Smithy John Smith": ["John Smith"],
        }[text]
    )


def test_a_list_of_beginnings_finds_few_things_in_each_place(known):
    """4,000 letters and 500 entries, each the beginning of the next, would else make two million findings."""
    policy = known(*("." * n for n in range(2, 500)))
    findings = policy.find("." * 4000 + " ab cdefghi" * 50)
    assert len(findings) <= PREFIX * 4000
    assert merged(findings) == [(0, 4000)]


@given(
    st.lists(
        st.text("ab 1-", min_size=2, max_size=6).filter(lambda s: len(s.replace(" ", "")) > 1), min_size=1, max_size=4
    ),
    st.text("ab 1-\n", max_size=30),
)
def test_known_agrees_with_a_search_for_each_entry(tmp_path_factory, secrets, text):
    """The oracle tries every entry at every place with a regular expression."""
    path = tmp_path_factory.mktemp("known") / "list.txt"
    path.write_text("\n".join(secrets))
    places = set()
    for secret in secrets:
        letters = [re.escape(sign) for sign in secret.lower() if not sign.isspace()]
        before = r"(?<!\w)" if secret.strip()[0].isalnum() else ""
        after = r"(?!\w)" if secret.strip()[-1].isalnum() else ""
        pattern = before + r"\s*".join(letters) + after
        for start in range(len(text)):
            match = re.compile(pattern, re.IGNORECASE).match(text, start)
            if match:
                places.update(range(*match.span()))
    covered = {place for start, end in merged(load(f"known:{path}").find(text)) for place in range(start, end)}
    assert covered == places


def test_a_hundred_thousand_entries(known):
    coins = random.Random(1)
    secrets = ["".join(coins.choices("abcdefgh", k=12)) for _ in range(100_000)]
    policy = known(*secrets)
    assert found(policy, f"this is {secrets[77].upper()} and nothing else") == [secrets[77].upper()]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no secret"),
        (b"Quentin Hidden\nx\n", "line 2: a known secret has 2"),
        (b"Quentin" * 200, "line 1"),
        (b"Hidden\xff\xfe\xfa", "not UTF-8"),
    ],
)
def test_bad_lists_are_named_without_their_content(tmp_path, content, reason):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(BadInput, match=reason) as told:
        load(f"known:{tmp_path / 'list.txt'}")
    said = str(told.value).replace(str(tmp_path), "")
    assert not [line for line in content.split(b"\n") if len(line) > 3 and line.decode("latin-1")[:20] in said]


def test_lists_that_are_not_there():
    for spec in ("known:nowhere.txt", "allowlist:nowhere.txt"):
        with pytest.raises(BadInput, match=r"nowhere\.txt: No such file"):
            load(spec)
    with pytest.raises(BadInput, match="known:FILE"):
        load("known")


@pytest.mark.parametrize(
    "text", ["Hello, I don't know. (You're right!)", "What is it - the delivery?", "SYS: Is that all?"]
)
def test_plain_english_is_public(text):
    assert load("allowlist").find(text) == []


@pytest.mark.parametrize(
    "text",
    ["I am Zebedee", "call 5", "a@b", "see #x", "my name is Rose", "привет", "x\u200by", f"the {MARK}", "e_mail", "Ⅷ"],
)
def test_whatever_is_not_on_the_list_is_flagged(text):
    assert load("allowlist").find(text)


def test_a_word_list_of_ones_own(tmp_path):
    (tmp_path / "words.txt").write_text("# public\nHallo\nWelt\n")
    policy = load(f"allowlist:{tmp_path / 'words.txt'}")
    assert not policy.find("hallo, WELT!")
    assert policy.find("hallo, world!")[0].type == "WORD"
    (tmp_path / "words.txt").write_text("two words\n")
    with pytest.raises(BadInput, match="one word a line"):
        load(f"allowlist:{tmp_path / 'words.txt'}")


@given(st.text(max_size=30))
def test_the_allowlist_flags_every_word_and_sign_outside_its_list(text):
    """Recall 1 by construction (guarantees §3): what is left after taking out findings is listed words and punctuation."""
    policy = load("allowlist")
    listed = set(resources.files("confide.policies").joinpath("words.txt").read_text("utf-8").split("\n"))
    rest = list(text)
    for start, end in merged(policy.find(text)):
        rest[start:end] = " " * (end - start)
    for word in re.split(r"[\s.,;:!?'’\"“”()…–—-]+", "".join(rest)):
        assert not word or word.casefold() in listed
