"""Policies of policies, policy files, plugins, functions; and mask-consistency of all that claim it."""

import sys
from importlib.metadata import EntryPoint

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.errors import BadInput
from confide.policies import Finding, Policy, known_policies, load, loading, merged
from confide.records import MARK, Record
from confide.screening.treatment import treat


def types(policy, text):
    return sorted(finding.type for finding in policy.find(text))


def test_union_exclude_and_miss(tmp_path):
    (tmp_path / "public.txt").write_text("911\n")
    (tmp_path / "names.txt").write_text("Ada Pine\n")
    policy = load(f"exclude(union(digits, known:{tmp_path / 'names.txt'}), known:{tmp_path / 'public.txt'})")
    assert types(policy, "Ada Pine called 911 and 555") == ["DIGITS", "KNOWN"]
    assert load("miss(digits, 1)").find("555") == []
    assert load("miss(digits, 0)").find("555") == load("digits").find("555")


def test_a_miss_is_a_keyed_coin_of_the_secret_alone():
    policy, other = load("miss(digits, 0.3)"), load("miss(digits, 0.3, 7)")
    numbers = [str(n) for n in range(10_000, 14_000)]
    missed = [n for n in numbers if not policy.find(f"call {n}")]
    assert 0.26 < len(missed) / len(numbers) < 0.34
    assert all(len(policy.find(f"x {n} y")) == (n not in set(missed)) for n in numbers[:200])
    assert missed != [n for n in numbers if not other.find(n)]


def test_a_policy_file(tmp_path):
    (tmp_path / "secrets.txt").write_text("blue whale\n")
    (tmp_path / "policy.yaml").write_text(
        """
union:
  - use: patterns
    without: [DATE]
  - known:secrets.txt
  - pattern: 'staff \\d'
    type: EMPLOYEE
"""
    )
    policy = load(str(tmp_path / "policy.yaml"))
    assert types(policy, "staff 7 saw the Blue  Whale on 2024-01-05, write to ada@example.org") == [
        "EMAIL",
        "EMPLOYEE",
        "KNOWN",
    ]
    (tmp_path / "policy.yaml").write_text("union: [{use: patterns, only: [EMAIL]}]\nmiss: 0")
    assert types(load(str(tmp_path / "policy.yaml")), "ada@example.org 4111 1111 1111 1111") == ["EMAIL"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("union: 5", "holds `union:`"),
        ("- patterns", "holds `union:`"),
        ("union: [{use: digits, other: 1}]", "each policy is a name"),
        ("union: [{use: digits, only: EMAIL}]", "`only` is a list"),
        ("union: [nothing-such]", "no policy is called"),
        ("union: [{pattern: '(?=a)', type: A}]", "RE2"),
        ("union: [digits]\nmiss: often", "`miss` is a rate"),
        ("union: [digits]\nmiss: true", "`miss` is a rate"),
        ("a: &a [1]\nunion: [*a]", "without aliases"),
        ("union: !!python/object:os.system [ls]", "plain values"),
        ("union: [\x00", "plain values"),
        ('union: [{pattern: "\\ud800", type: A}]', "plain values"),
    ],
)
def test_policy_files_that_cannot_be_used(tmp_path, content, reason):
    (tmp_path / "policy.yaml").write_text(content)
    with pytest.raises(BadInput, match=reason):
        load(str(tmp_path / "policy.yaml"))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("nothing-such", "no policy is called 'nothing-such'"),
        ("digits:5", "takes nothing after a colon"),
        ("union(digits", "no policy is called"),
        ("both(digits, nothing)", "policies are composed as"),
        ("miss(digits, x)", "is not a number"),
        ("miss(digits, 2)", "between 0 and 1"),
        ("miss(digits, 0.1, inf)", "is not a number"),
        ("miss(digits, nan)", "is not a number"),
        ("union(" * 2000 + "digits" + ")" * 2000, "at most 50"),
        ("union(digits, miss(nothing, .1)", "open parenthesis"),
        ("python:os", "python:module:function"),
        ("python:no_such_module:f", "cannot import no_such_module"),
        ("python:os:no_such_function", "has no no_such_function"),
        ("missing.yaml", "cannot read the policy file"),
    ],
)
def test_policies_that_cannot_be_made(spec, reason):
    with pytest.raises(BadInput, match=reason):
        load(spec)


def test_commas_in_quotation_marks():
    policy = load("union(miss('patterns:EMAIL,PHONE', 0), digits)")
    assert types(policy, "ada@example.org 555-867-5309 2024-01-05")[0] == "DIGITS"
    assert "DATE" not in types(policy, "2024-01-05")


def test_offsets_of_expressions_on_text_beyond_ascii(tmp_path):
    (tmp_path / "policy.yaml").write_text("union: [{pattern: 'Z\\d+', type: Z}]")
    text = "żółć 🐟 Z123 ж Z4"
    assert [text[f.start : f.end] for f in load(str(tmp_path / "policy.yaml")).find(text)] == ["Z123", "Z4"]


def test_a_catastrophic_expression_runs_in_linear_time(tmp_path):
    (tmp_path / "policy.yaml").write_text("union: [{pattern: '(a+)+b', type: A}]")
    assert load(str(tmp_path / "policy.yaml")).find("a" * 100_000) == []


def test_a_function_must_return_spans_of_the_text(policy):
    with pytest.raises(BadInput, match="span outside the record"):
        load(policy(lambda text: [(0, len(text) + 1)])).find("abc")


def test_plugins_are_found_by_their_entry_point(monkeypatch):
    class Shout(Policy):
        name = "shout"

        def find(self, text):
            return [Finding(0, len(text), "SHOUT", self.name)] if text.isupper() else []

    module = type(sys)("shouting")
    module.make, module.broken = (lambda argument: Shout()), (lambda argument: 5)
    monkeypatch.setitem(sys.modules, "shouting", module)
    points = [EntryPoint(name, f"shouting:{name}", loading.GROUP) for name in ("make", "broken")]
    monkeypatch.setattr(loading, "entry_points", lambda group: points)
    assert load("make").find("HELP")[0].type == "SHOUT"
    assert "make" in known_policies()
    with pytest.raises(BadInput, match="did not return a confide"):
        load("broken")


fragments = st.sampled_from(
    ["call", "me", "555", "1", " ", "  ", "\n", "-", "'", "ada", "Pine", "zq", "don't", "o", "@", MARK, "the", "_", "4 5", "will",
     "\u0130", "\u00df", "田中", "a@b.co", "212 555 1234", "."]
)  # fmt: skip
POLICIES = {
    "digits": "digits", "allowlist": "allowlist", "everything": "everything", "nothing": "nothing", "known": "known:KNOWN",
    "union": "union(digits, known:KNOWN, allowlist)", "two": "union(digits, known:KNOWN)", "lists": "union(allowlist, known:KNOWN)",
    "miss": "miss(union(digits, known:KNOWN), 0.5)", "miss patterns": "miss(patterns, 0.4)", "miss all": "miss(everything, 0.5)",
}  # fmt: skip


@settings(max_examples=200)
@given(st.lists(fragments, max_size=12).map("".join), st.sampled_from(sorted(POLICIES)), st.integers(0, 5))
def test_masking_what_was_found_changes_nothing(tmp_path_factory, text, which, seed):
    """guarantees §3 for every policy that claims to be mask-consistent: t(s) = t(s[c→MARK]) for each maximal span c."""
    path = tmp_path_factory.getbasetemp() / "known.txt"
    path.write_text("ada pine\npine 555\no'zq\n1 me\nwill\nme\n田中\n\u00dfo\n")
    spec = POLICIES[which].replace("KNOWN", str(path))
    policy = load(spec.removesuffix(")") + f", {seed})" if spec.startswith("miss") else spec)
    assert policy.consistency in ("local", "alone")
    screened = treat(Record("r", text, "r"), policy)
    for start, end in merged(policy.find(text)):
        masked = treat(Record("r", text[:start] + MARK + text[end:], "r"), policy)
        assert masked.text == screened.text


@pytest.mark.parametrize(
    ("spec", "consistency"),
    [
        ("union(digits, patterns)", "none"),
        ("union(miss(everything, 0.5), digits)", "none"),
        ("exclude(digits, nothing)", "none"),
        ("union(digits, allowlist)", "local"),
        ("union(patterns)", "alone"),
        ("miss(low-entity, 0.1)", "none"),
    ],
)
def test_consistency_is_claimed_for_no_more_than_is_proven(spec, consistency):
    assert load(spec).consistency == consistency


def test_what_a_function_prints_or_does_stays_with_it(policy, capsys):
    def noisy(text):
        print(text)
        return [(0, 1)]

    def leaves(text):
        raise SystemExit(0)

    assert load(policy(noisy)).find("abc")
    assert capsys.readouterr().out == ""
    with pytest.raises(BadInput, match="failed with SystemExit"):
        load(policy(leaves)).find("abc")


def test_a_type_is_a_word_and_no_text(monkeypatch):
    module = type(sys)("leaky")
    module.find = lambda text: [(0, 2, text)]
    monkeypatch.setitem(sys.modules, "leaky", module)
    with pytest.raises(BadInput, match="a type is a word"):
        load("python:leaky:find").find("my secret is 1234")
