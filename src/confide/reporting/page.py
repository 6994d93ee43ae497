"""The report: run folders in; one page that opens anywhere, its figures and the model card out."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__, wording
from ..accounting import issue, read_ledger
from ..accounting import write as write_certificate
from ..accounting.guarantees import down
from ..attacks.lines import audits, lines, strongest
from ..errors import BadInput, ConfideError, printable
from ..plain_yaml import CONFIG
from ..rundir import locked, write_private
from .card import CERTIFICATE, write_card
from .commands import command, reference
from .edges import EDGES, GLOSSARY
from .figures import charts
from .gather import Found, gather, siblings
from .misses import beside_certificate, in_words
from .sharing import shareable as only_shareable
from .sharing import without_paths

if TYPE_CHECKING:
    from ..training.run import Run
    from .drawing import Chart

PARTS = ("model", "certificate", "attacks", "audit", "corpus", "review")
PACKAGES = ("confide", "torch", "transformers", "dp-accounting", "numpy", "scipy")
SECTIONS = {
    "promise": "What is promised", "corpus": "The corpus", "misses": "What the policy misses", "privacy": "Privacy",
    "utility": "Utility", "attacks": "Attacks", "ledger": "The ledger", "reproduce": "Reproducing it", "glossary": "Glossary",
    "edges": "Sharp edges",
}  # fmt: skip


def report(
    runs: Sequence[str | Path | Run] | str | Path | Run, out: str | Path | None = None, *, shareable: bool = False
) -> Path:
    """Write the report of a run, or the comparison of several, and return its path.

    One run: RUN/report.html (SENSITIVE) or RUN/report-shareable.html, its figures, RUN/model/README.md and, if the certificate
    holds, RUN/certificate-shareable.json. Several runs: a page at `out`, or comparison.html beside the first one. `shareable`
    leaves out whatever guarantees §7 does not let out.
    """
    several: list[Any] = list(runs) if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    folders = [Path(getattr(one, "folder", one)) for one in several]
    if not folders:
        raise BadInput("name at least one run folder")
    if len({one.resolve() for one in folders}) < len(folders):
        raise BadInput("a run is named twice; name each run once")
    environment = _environment()
    found = [gather(folder) for folder in folders]
    shown = [only_shareable(one) for one in found] if shareable else found
    suffix = "-shareable" if shareable else ""
    if len(found) > 1:
        from .compare import compare

        path = Path(out) if out is not None else folders[0].resolve().parent / f"comparison{suffix}.html"
        if path.exists() and not _is_page(path):
            raise BadInput(f"{path} exists and is no page of confide's; name another file with -o")
        page = environment.get_template("compare.html.j2").render(**_common(shareable), **compare(shown, found))
        return _write(path, page)
    with locked(folders[0], CONFIG):
        return _report(folders[0], shown[0], found[0], out, shareable)


def _report(folder: Path, one: Found, found: Found, out: str | Path | None, shareable: bool) -> Path:
    """Write a run's own page, and what lies beside it."""
    suffix = "-shareable" if shareable else ""
    beside, left = siblings(found)
    if shareable:
        beside = [other for other in map(only_shareable, beside) if other.utility is not None]
        left = []
    drawn = charts(one, beside)
    _write_figures(folder / f"figures{suffix}", drawn)
    write_card(folder, one if shareable else only_shareable(found))
    _write_certificate(folder, found)
    path = Path(out) if out is not None else folder / f"report{suffix}.html"
    context = {**_common(shareable), **_context(one, beside, drawn), "left": left}
    return _write(path, _environment().get_template("report.html.j2").render(context))


def _is_page(path: Path) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return b"<title>confide" in file.read(1 << 12)
    return False


def _write_certificate(folder: Path, found: Found) -> None:
    """The certificate that may be passed on: without evidence, and only of a run whose own one holds."""
    path = folder / CERTIFICATE
    if found.holds and found.certificate is not None:
        write_certificate(issue(read_ledger(folder / "ledger.jsonl"), found.certificate["delta"]), path)
    else:
        path.unlink(missing_ok=True)


def _environment() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise ConfideError("a report needs matplotlib and Jinja2: pip install 'confide[report]'") from None
    made = Environment(
        loader=PackageLoader("confide.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # before it is escaped
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["down"] = down
    made.filters |= {
        name: getattr(wording, name)
        for name in ("epsilon", "number", "share", "share_up", "small", "utility", "odds", "shortened")
    }
    made.globals |= {"titles": wording.TITLES, "methods": wording.METHODS}
    return made


def _common(shareable: bool) -> dict[str, Any]:
    from markupsafe import Markup

    style = (Path(__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    return {"style": Markup(style), "shareable": shareable, "version": __version__}


def _context(found: Found, beside: Sequence[Found], drawn: Mapping[str, Chart]) -> dict[str, Any]:
    certificate = found.certificate or {}
    setting = certificate.get("setting", {})
    guarantees = certificate.get("guarantees", [])
    rows, left = lines(found.attacks)
    return {
        "run": found,
        "beside": [(one, one.name if not found.shareable else one.method) for one in beside],
        "charts": drawn,
        "stated": [one for one in guarantees if one["name"] != "group"],
        "groups": [one for one in guarantees if one["name"] == "group"],
        "recall_class": setting.get("recall_class"),
        "rests_on": wording.rests_on(certificate.get("assumptions", [])),
        "selective": wording.SELECTIVE if found.method == "sdp" else "",
        "missing": {**dict.fromkeys(PARTS), **{one.part: one for one in found.missing}},
        "misses": [] if found.review is None else in_words(found.review),
        "rests_on_review": "" if found.review is None else beside_certificate(found.review, found.certificate),
        "named_paths": _named_paths(found),
        "attack_rows": rows,
        "attacks_left": left,
        "strongest": strongest(found.attacks),
        "audits": audits(found.attacks),
        "verify": command("verify", CERTIFICATE if found.shareable else found.folder),
        "reference": reference(found.folder, found.screened, found.options),
        "packages": _packages() if not found.shareable else [("confide", __version__)],
        "sections": SECTIONS,
        "events": _events(found.ledger),
        "glossary": GLOSSARY,
        "edges": EDGES,
    }


def _named_paths(found: Found) -> list[str]:
    """What in the ledger's setting names folders of this machine: the chain of hashes binds it, so that it cannot be taken out."""
    if found.shareable or found.certificate is None:
        return []
    values = [value for value in found.certificate["setting"].values() if isinstance(value, str)]
    return [value for value in values if without_paths(value) != value]


def _events(ledger: Mapping[str, Any] | None) -> dict[str, list[dict[str, Any]]]:
    """The ledger's entries, with equal ones in a row as one line."""
    if ledger is None:
        return {}
    found: dict[str, list[dict[str, Any]]] = {"planned": [], "spent": []}
    for part, rows in found.items():
        for entry in ledger[part]:
            event = {
                "phase": entry["phase"],
                "kind": entry["kind"],
                "count": entry.get("count"),
                "values": ", ".join(
                    f"{n.replace('_', ' ')} {_plain(v)}"
                    for n, v in entry.items()
                    if n not in ("phase", "kind", "count")
                ),
            }
            same = rows and all(rows[-1][name] == event[name] for name in ("phase", "kind", "values"))
            if same and event["count"] is not None:
                rows[-1]["count"] += event["count"]
                rows[-1]["entries"] += 1
            else:
                rows.append({**event, "entries": 1})
    return found


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _packages() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found


def _write(path: Path, text: str) -> Path:
    try:
        write_private(path, text)
    except OSError as error:
        raise ConfideError(f"cannot write {path}: {error.strerror}; make room, or name another place with -o") from None
    return path


def _write_figures(folder: Path, drawn: Mapping[str, Chart]) -> None:
    try:
        if folder.is_symlink():
            raise ConfideError(f"{folder} is a link, which is never followed; remove it, and run the command again")
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in [*folder.glob("*.svg"), *folder.glob("*.png")]:
            old.unlink()
        for name, chart in drawn.items():
            for kind, content in (("svg", chart.svg.encode()), ("png", chart.png)):
                with os.fdopen(
                    os.open(folder / f"{name}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
                ) as file:
                    file.write(content)
    except OSError as error:
        raise ConfideError(
            f"cannot write {folder}: {error.strerror}; make room or make it writable, and run the command again"
        ) from None
