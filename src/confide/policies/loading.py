"""From a few words to a policy: `patterns`, `known:FILE`, `union(pii, known:FILE)`, `policy.yaml`, a plugin's name."""

from __future__ import annotations

import contextlib
import importlib
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ..errors import BadInput, meant
from ..plain_yaml import read_yaml
from .base import REGISTRY, Entry, Policy
from .compose import Exclude, Expression, Miss, Types, Union

GROUP = "confide.policies"  # the entry-point group of plugins: a name, and a function from argument to policy
DEEPEST = 50
_MODULES = ("plain", "patterns", "pii", "spacy_levels", "scores", "known", "allowlist", "customersim", "compose")
COMPOSED = {
    "union(A, B, …)": "what any of the policies finds",
    "exclude(A, B)": "what A finds, but for what lies inside a finding of B",
    "miss(A, RATE[, SEED])": "A, missing a share RATE on purpose; the coin is a keyed hash of the secret",
    "FILE.yaml": "policies with switches for types, and regular expressions of yours",
}


def known_policies() -> dict[str, Entry]:
    """Every policy that can be named, plugins included."""
    return {point.name: _plugin(point) for point in entry_points(group=GROUP)} | _shipped()


def _shipped() -> dict[str, Entry]:
    for module in _MODULES:
        importlib.import_module(f".{module}", __package__)
    return REGISTRY


def load(spec: str) -> Policy:
    """Make the policy that a few words describe.

    >>> load("union(digits, miss(allowlist, 0.1))").find("call 555")[0].type
    'DIGITS'
    """
    spec = spec.strip()
    if spec.count("(") > DEEPEST:
        raise BadInput(f"a policy is composed of at most {DEEPEST} others")
    if spec.endswith((".yaml", ".yml")) and spec.split(":", 1)[0] not in _shipped():
        return _from_yaml(Path(spec))
    if spec.endswith(")") and "(" in spec.split(":", 1)[0]:
        return _composed(spec)
    name, colon, argument = spec.partition(":")
    entry = _shipped().get(name) or known_policies().get(name)
    if entry is None:
        if "," in name:
            raise BadInput(f"no policy is called {name[:60]!r}; several at once are written union(one, another)")
        raise BadInput(f"no policy is called {name[:60]!r}{_hint(name)}; `confide policies` lists them")
    return entry.make(argument if colon else None)


def _hint(name: str) -> str:
    from .patterns import TYPES

    if name.upper() in TYPES:
        return f"; did you mean 'patterns:{name.upper()}'?"
    return meant({"presidio": "pii"}.get(name.lower(), name), known_policies())


def _plugin(point: EntryPoint) -> Entry:
    package = point.dist.name if point.dist else point.value

    def make(argument: str | None) -> Policy:
        try:
            policy = point.load()(argument)
        except BadInput:
            raise
        except Exception as error:
            raise BadInput(
                f"the policy plugin {point.name} ({package}) failed with {type(error).__name__}; its package must be mended"
            ) from None
        if not isinstance(policy, Policy):
            raise BadInput(f"the policy plugin {point.name} ({package}) did not return a confide.policies.Policy")
        return policy

    return Entry(point.name, f"plugin of the package {package}", make, "[:ARGUMENT]")


def _composed(spec: str) -> Policy:
    name, _, inside = spec[:-1].partition("(")
    parts = _commas(inside)
    if name == "union":
        return Union([load(part) for part in parts])
    if name == "exclude" and len(parts) == 2:
        return Exclude(load(parts[0]), load(parts[1]))
    if name == "miss" and len(parts) in (2, 3):
        return Miss(load(parts[0]), _number(parts[1]), int(_number(parts[2])) if len(parts) == 3 else 0)
    raise BadInput(f"cannot read the policy {name[:40]}(…); policies are composed as {', '.join(list(COMPOSED)[:3])}")


def _commas(text: str) -> list[str]:
    """The parts between commas that lie in no parentheses; quotation marks keep a comma in a part."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if sign in "'\"" and quote in ("", sign):
            quote = "" if quote else sign
            if not depth:
                continue
        elif not quote:
            depth += (sign == "(") - (sign == ")")
            if sign == "," and not depth:
                parts.append("")
                continue
        parts[-1] += sign
    if depth or quote:
        raise BadInput("the policy has an open parenthesis or quotation mark")
    return [part.strip() for part in parts]


def policy_name(spec: str) -> str:
    """What a policy is called where others may read it: files by their last component, whatever the folders are called; models of the hub whole.

    >>> policy_name("union(pii, known:wards/hiv/patients.txt)")
    'union(pii, known:patients.txt)'
    """
    name, bracket, inside = spec.partition("(")
    if bracket and spec.endswith(")") and ":" not in name:
        with contextlib.suppress(BadInput):  # what cannot be taken apart has no parts
            return f"{name}({', '.join(map(policy_name, _commas(inside[:-1])))})"
    kind, colon, argument = spec.partition(":")
    if kind == "scores" and re.fullmatch(r"[\w.-]+/[\w.-]+", argument) and not Path(argument).exists():
        return spec
    return kind + colon + last_component(argument) if colon else last_component(spec)


def last_component(path: str) -> str:
    """What a file or folder is called, without where it lies."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def _number(text: str) -> float:
    try:
        number = float(text)
        int(number)
        return number
    except (ValueError, OverflowError):
        raise BadInput(f"{text[:40]!r} is not a number, in miss(policy, rate, seed)") from None


def _from_yaml(path: Path) -> Policy:
    tree = read_yaml(path, "the policy file")
    if (
        not isinstance(tree, dict)
        or tree.keys() - {"union", "exclude", "miss"}
        or not isinstance(tree.get("union"), list)
    ):
        raise BadInput(f"{path}: a policy file holds `union:`, a list of policies, and perhaps `exclude:` and `miss:`")
    policy: Policy = Union([_member(member, path) for member in tree["union"]])
    if "exclude" in tree:
        policy = Exclude(policy, _member(tree["exclude"], path))
    if "miss" in tree:
        if not isinstance(tree["miss"], int | float) or isinstance(tree["miss"], bool):
            raise BadInput(f"{path}: `miss` is a rate between 0 and 1")
        policy = Miss(policy, float(tree["miss"]))
    policy.files = (*policy.files, str(path))
    return policy


def _member(node: Any, path: Path) -> Policy:
    if isinstance(node, str):
        node = {"use": node}
    if isinstance(node, dict) and node.keys() == {"pattern", "type"} and all(isinstance(v, str) for v in node.values()):
        return Expression(node["pattern"], node["type"])
    if not isinstance(node, dict) or not isinstance(node.get("use"), str) or node.keys() - {"use", "only", "without"}:
        raise BadInput(
            f"{path}: each policy is a name, or a mapping with `use` and perhaps `only` or `without` (lists of types), or one "
            "with `pattern` and `type`"
        )
    policy = load(_beside(node["use"], path))
    if "only" in node or "without" in node:
        only, without = (_types(node.get(key), key, path) for key in ("only", "without"))
        policy = Types(policy, only, without or frozenset())
    return policy


def _types(names: Any, key: str, path: Path) -> frozenset[str] | None:
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path}: `{key}` is a list of types, such as [EMAIL, PHONE]")
    return frozenset(names)


def _beside(spec: str, path: Path) -> str:
    """A file that a policy file names is looked for beside it, and must lie there: a policy file is data, often someone else's.

    *Formal guarantees.* A policy file reads files of its own folder and of folders below it only, links followed, and runs no
    code but policies that are installed.
    """
    name, colon, argument = spec.partition(":")
    if "(" in name or "(" in argument or name == "python" or name.strip().endswith((".yaml", ".yml")):
        raise BadInput(
            f"{path}: a policy file names neither other policy files, nor composed policies, nor Python functions; compose them on the "
            "command line, such as union(policy.yaml, python:module:function)"
        )
    if not colon:
        return spec
    entry, home = _shipped().get(name), path.parent.resolve()
    file = home / argument
    try:
        named = (entry is not None and "FILE" in entry.argument) or file.exists()
        if named and not file.resolve().is_relative_to(home):
            raise BadInput(
                f"{path}: {name}:… names a file outside of the policy file's folder; put it beside the policy file, or name it on the "
                "command line"
            )
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, links in a circle, a NUL
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: {name}:… is not followed by the name of a file") from None
    return f"{name}:{file}" if named else spec
