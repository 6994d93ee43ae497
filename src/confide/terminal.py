"""What people see in the terminal: the answers of the commands in; tables and sentences, numbers rounded to the safe side, out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from .accounting.guarantees import many, percent, up
from .errors import printable
from .wording import epsilon

if TYPE_CHECKING:
    from .accounting.verification import Verified
    from .purging import Purge
    from .screening import Screened


def say(console: Console, text: str, indent: int = 0) -> None:
    """A paragraph, wrapped with a hanging indent."""
    console.print(Padding(text, (0, 0, 0, indent), expand=False), highlight=False)


def show_epsilon(console: Console, found: dict[str, Any]) -> None:
    """The calculator's answer."""
    if "labels" in found:
        say(
            console,
            f"[bold]{found['labels']:,}[/] independent labels without a single miss bound the miss rate by "
            f"{found['delta2']:g} with confidence {percent(found['confidence'])}",
        )
        return
    if "choices" in found:
        _show_choices(console, found)
        return
    if "target_epsilon" in found:
        what = f"[bold]noise multiplier {up4(found['noise_multiplier'])}[/] meets"
        if "curve_evaluations" not in found:
            what = f"[bold]{many(found['steps'], 'step')}[/] ({found['epochs']:.4g} epochs) meet{'s' if found['steps'] == 1 else ''}"
        say(console, f"{what} the target: {found['target']} at most {found['target_epsilon']:g}")
    say(console, f"[bold]epsilon = {epsilon(found['epsilon'])}[/] at delta = {found['delta']:g}")
    _show_facts(console, found)
    if found.get("add_remove_epsilon") is not None:
        other = up(found["add_remove_epsilon"])
        text = f"tools that account for adding or removing a record would print {other}; that does not hold for a masked secret"
        _fact(console, "compare", text)
    if "groups" in found:
        say(
            console,
            f"\nepsilon at delta = {found['delta']:g} by how many records change when secrets are masked together:",
        )
        show_groups(console, found["groups"])
    ceilings = found["ceilings"]
    records = "a private record" if found["k"] == 1 else f"{found['k']} private records together"
    say(
        console,
        f"\nWhere a fair coin decides over {records}, no attack exceeds: balanced accuracy "
        f"{up(ceilings['balanced_accuracy'])} (chance 0.5), true positives {up(ceilings['tpr_at_fpr_0.01'])} at 1 % false "
        f"ones, mean exposure {up(ceilings['mean_exposure'])} of 19.94 bits (chance 1.44)",
    )
    if "bayesian" in found:
        _show_bayesian(console, found["bayesian"])


def up4(value: float) -> str:
    """Noise for people: four digits, rounded up, so that typing it in again meets the target."""
    digits = 3 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**digits) / 10.0**digits:.{max(0, digits)}f}"


def _show_facts(console: Console, found: dict[str, Any]) -> None:
    changed = "" if found["k"] == 1 else f", for {found['k']} records at once"
    _fact(console, "adjacency", f"{found['adjacency']}, k={found['k']}: {found['adjacency_meaning']}{changed}")
    _fact(console, "sampler", _sampler(found))
    if "noise_multiplier" in found:
        noise = up4(found["noise_multiplier"]) if "curve_evaluations" in found else f"{found['noise_multiplier']:g}"
        _fact(console, "noise", f"{noise} times the clipping norm of one {found['unit']}")
    _fact(console, "accountant", found["accountant"])


def _fact(console: Console, name: str, text: str) -> None:
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=11, style="dim")
    table.add_row(name, inert(text))
    console.print(Padding(table, (0, 0, 0, 2)), highlight=False)


def _sampler(found: dict[str, Any]) -> str:
    if "sampling_rate" not in found and found["sampler"] == "shuffled":
        return f"shuffled, {many(found['epochs'], 'epoch')}, no amplification"
    if "sampling_rate" not in found:
        return "poisson: each record independently"
    kind = "each record independently" if found["sampler"] == "poisson" else "batches of fixed size, each record"
    return f"{found['sampler']}: {kind} with probability {found['sampling_rate']:.6g}, {many(found['steps'], 'step')}"


def _show_bayesian(console: Console, bayesian: dict[str, Any]) -> None:
    public = ""
    if bayesian["delta2"]:
        public = f", and lets at most {up(bayesian['delta2'])} of them become public"
    say(
        console,
        f"\nWith confidence {percent(bayesian['confidence'])} the policy misses at most a share of {up(bayesian['gamma'])} of "
        f"secrets{public}. At delta = {bayesian['delta']:.3g}, for a random secret:",
    )
    for key, text in (
        ("slot_epsilon", "if the labels are independent redraws of the secret into the very slot in question"),
        (
            "corpus_epsilon",
            "if they are independent draws of occurrences from the corpus, their number fixed beforehand",
        ),
    ):
        say(console, f"[bold]epsilon = {epsilon(bayesian[key])}[/] {text}", indent=2)
    say(console, "Labels from reviewed records, several to a record or until the number looks good, need another bound "
        "(`review_bound`).", indent=2)  # fmt: skip


def _show_choices(console: Console, found: dict[str, Any]) -> None:
    table = Table("batch size", "rate", "steps", "noise multiplier", "noise per step", "noise per run", box=None)
    for choice in found["choices"]:
        table.add_row(
            f"{choice['batch_size']:,}",
            f"{choice['sampling_rate']:.4g}",
            f"{choice['steps']:,}",
            up4(choice["noise_multiplier"]),
            f"{choice['noise_per_step']:.3g}",
            f"{choice['noise_per_run']:.3g}",
        )
    say(console, f"epsilon {found['target_epsilon']:g} at delta {found['delta']:g} for equal epochs; noise on the mean gradient, "
        "in clipping norms:")  # fmt: skip
    console.print(table)
    say(
        console,
        f"\nBatch size [bold]{found['batch_size']:,}[/] is enough: its noise over the whole run is within a tenth of the least. "
        f"Noise per step goes on falling; it is least at {found['least_noise_per_step']:,}, the largest tried.",
    )
    _show_facts(console, found)


def show_groups(console: Console, groups: list[dict[str, Any]]) -> None:
    """A row of ε by how many records change."""
    table = Table("records changed", *[f"{row['k']}" for row in groups], box=None, pad_edge=False)
    table.add_row("epsilon", *["none" if row["epsilon"] is None else up(row["epsilon"]) for row in groups])
    console.print(table)


def show_certificate(console: Console, certificate: dict[str, Any]) -> None:
    """A certificate's guarantees, with the adjacency, unit and sampler under which they hold."""
    adjacency = certificate["adjacency"]
    if certificate["subject"]:
        say(console, inert(certificate["subject"]))
    say(
        console,
        f"{inert(certificate['method'])}, unit: {inert(certificate['unit'])}, sampler: {inert(certificate['sampler'])}, adjacency: "
        f"{inert(adjacency['name'])} ({inert(adjacency['meaning'])})\n",
    )
    for guarantee in certificate["guarantees"]:
        if guarantee["name"] == "group":
            continue
        value = epsilon(guarantee["epsilon"])
        at = f"epsilon {value} at delta {guarantee['delta']:.3g}" if guarantee["epsilon"] is not None else value
        console.print(f"[bold]{inert(guarantee['name'])}[/]: {at}", highlight=False)
        say(console, inert(guarantee["sentence"]), indent=2)
    groups = [g for g in certificate["guarantees"] if g["name"] == "group"]
    if groups:
        say(
            console,
            f"\nepsilon at delta {certificate['delta']:g} by how many records change ({inert(certificate['k']['repeats'])}):",
        )
        show_groups(console, groups)


def show_verified(console: Console, verified: Verified) -> None:
    """The page of `confide verify`."""
    certificate = verified.certificate
    taken = "delta" if certificate["evidence"] is None else "delta and the labelled evidence"
    say(
        console,
        f"[bold green]holds[/]: the chain of {verified.ledger_length} ledger entries is unbroken, and every number and sentence was "
        f"recomputed from it ({taken} as the certificate states {'it' if taken == 'delta' else 'them'})"
        f"{'; the model beside it (weights, configuration, vocabulary) is the one that the ledger names' * verified.model}\n",
    )
    show_certificate(console, certificate)
    console.print("\n[bold]under these assumptions[/], which no arithmetic can check:")
    for assumption in certificate["assumptions"]:
        say(console, f"[dim]{inert(assumption['id'])}[/]: {inert(assumption['text'])}", indent=2)
    console.print("\n[bold]not promised[/]:")
    for gap in certificate["not_promised"]:
        say(console, inert(gap), indent=2)


def show_screened(console: Console, manifest: dict[str, Any], folder: object) -> None:
    """The counts of a screening, and the stability that the certificate will rest on."""
    records = many(manifest["records"], inert(manifest["unit"]))
    if manifest["records"] != manifest["documents"]:
        records = f"{many(manifest['documents'], 'document')}, {records}"
    say(
        console,
        f"[bold]{records}[/]: [green]{manifest['public']:,} public[/], [yellow]{manifest['private']:,} private[/]",
    )
    findings = sorted(manifest["findings"].items(), key=lambda pair: -pair[1])
    if findings:
        _fact(console, "redacted", ", ".join(f"{count:,} {kind}" for kind, count in findings))
    if manifest["bad_rows"]:
        _fact(console, "skipped", f"{many(manifest['bad_rows'], 'row')} that could not be used")
    if manifest["dedup"] != "off":
        _fact(
            console,
            "duplicates",
            f"{manifest['private_duplicates']:,} masked in the private part ({manifest['dedup']}, {manifest['order']})",
        )
    if manifest["public_dedup"] != "off":
        _fact(
            console, "", f"{manifest['public_duplicates']:,} left out of the public part ({manifest['public_dedup']})"
        )
    if manifest["canaries"]:
        _fact(console, "canaries", f"{manifest['canaries']['canaries']:,}, each {manifest['canaries']['copies']} times")
    k = manifest["k"]
    caught = "nothing changes" if k["detected"] == 0 else f"at most {many(k['detected'], 'record')}"
    _fact(
        console,
        "stability",
        f"masking a missed secret changes at most {many(k['missed'], 'record')}; a caught one: {caught}",
    )
    _fact(console, "", k["repeats"])
    recall = manifest["conservative"]["recall_class"]
    _fact(console, "private by", f"{manifest['conservative']['spec']}" + (f" (flags {recall})" if recall else ""))
    if not manifest["public"] and manifest["conservative"]["spec"] == "everything":
        say(
            console,
            "nothing is public, so that crt has no step without noise: --conservative allowlist leaves records of plain words public",
            indent=2,
        )
    for warning in manifest["warnings"]:
        console.print(Padding(f"[bold red]warning[/]: {inert(warning)}", (0, 0, 0, 2)), highlight=False)
    say(console, f"in {inert(str(folder))} (SENSITIVE)")


def show_records(console: Console, screened: Screened, count: int) -> None:
    """Private records, raw beside screened, with the type of each finding."""
    table = Table("raw", "screened", "found", box=None, pad_edge=False)
    left = count
    for batch in screened.batches("private", ("text", "raw", "spans")):
        for row in batch.to_pylist():
            if row["spans"] and left > 0:
                kinds = ", ".join(f"{span['type']} ({span['policy']} {span['score']:.2g})" for span in row["spans"])
                table.add_row(*(inert(text) for text in (row["raw"], row["text"], kinds)))
                left -= 1
        if left <= 0:
            break
    console.print(table, highlight=False)


def inert(text: object) -> str:
    """What came from data, a file name or an option, for a line with rich's markup: it shows as it is and does nothing."""
    return escape(printable(str(text)))


def show_policies(console: Console, found: list[dict[str, str]], composed: dict[str, str]) -> None:
    """The page of `confide policies`."""
    for entry in found:
        console.print(f"[bold]{inert(entry['name'])}[/][dim]{inert(entry['argument'])}[/]", highlight=False)
        needs = f" [dim](needs {inert(entry['needs'])})[/]" if entry["needs"] else ""
        say(console, inert(entry["summary"]) + needs, indent=4)
    for name, summary in composed.items():
        console.print(f"[bold]{inert(name)}[/]", highlight=False)
        say(console, inert(summary), indent=4)


def show_plan(console: Console, found: dict[str, Any], brief: bool = False) -> None:
    """The page of `confide plan`: sizes, steps, noise, guarantees, cost. `brief`: of the guarantees only the first."""
    say(
        console,
        f"[bold]{inert(found['method'])}[/] of {inert(found['model'])}: [green]{found['public']:,} public[/] and "
        f"[yellow]{found['private']:,} private[/] {inert(found['unit'])}s to train on, {found['validation']:,} to validate on",
    )
    for phase in found["phases"]:
        parts = [many(phase["epochs"], "epoch")]
        if phase["public_steps"]:
            parts.append(f"{phase['public_steps']:,} steps without noise")
        if "steps" in phase:
            parts.append(
                f"{phase['steps']:,} steps with noise {up4(phase['noise_multiplier'])} times the clipping norm {phase['clip_norm']:g}, "
                f"{phase['expected_batch']:,.4g} of {phase['private_records']:,} records each (rate {phase['sampling_rate']:.4g})"
            )
        _fact(console, phase["name"], "; ".join(parts))
    if "published_epsilon" in found:
        published = found["published_epsilon"]
        _fact(
            console,
            "published",
            f"the S-DP paper would state epsilon {up(published['epsilon'])} ({published['accounting']})",
        )
    if found["cost"] is not None:
        cost = found["cost"]
        _fact(
            console,
            "cost",
            f"about {_duration(cost['seconds'])} and {cost['memory_mb']:,.0f} MB in this process, by two steps of each kind",
        )
    for note in found["notes"]:
        console.print(Padding(f"[bold red]note[/]: {inert(note)}", (0, 0, 0, 2)), highlight=False)
    console.print()
    if "certificate" in found and brief:
        first = found["certificate"]["guarantees"][0]
        at = f"epsilon {epsilon(first['epsilon'])} at delta {first['delta']:.3g}"
        say(console, f"It will promise {at} ({first['name']}); what that means is said below, with the certificate.")
    elif "certificate" in found:
        show_certificate(console, found["certificate"])
    else:
        say(console, "[bold red]No guarantee[/]: this method trains without noise on text that may hold secrets.")


def show_run(console: Console, found: dict[str, Any]) -> None:
    """The end of a training run."""
    say(console, f"[bold]{inert(found['method'])}[/]: the model is in {inert(found['model'])}")
    if found["validation_loss"] is not None:
        loss, right = found["validation_loss"], f"{found['validation_accuracy']:.1%}"
        perplexity = f"perplexity {math.exp(loss):,.2f} a token" if loss < 100 else f"loss {loss:,.0f} a token"
        learned = f"{perplexity}, {right} of the next tokens right"
        if found["task"] == "classify":
            learned = f"loss {loss:.3f} a record, {right} of the classes right"
        say(console, f"validation on {inert(found['validated_on'])}: {learned}", indent=2)
    if found["certificate"] is None:
        say(console, "no certificate: nothing was trained with noise, so that no epsilon holds", indent=2)
        return
    stated = next((one for one in found["guarantees"] if one["epsilon"] is not None), None)
    value = "no finite bound"
    if stated is not None:
        value = f"{stated['name']}: epsilon {up(stated['epsilon'])} at delta {stated['delta']:.3g}"
        value += "" if found["epsilon"] is not None else ", and no bound for secrets that phase 1 missed"
    say(
        console,
        f"[bold]{value}[/] ({found['adjacency']}, k={found['k']}, {found['sampler']} sampling, unit: {found['unit']}); all of it "
        f"with `confide verify {inert(found['run'])}`",
        indent=2,
    )
    if found["adjacency"] == "selective":
        say(console, "selective privacy: nothing holds for tokens that the policy misses, and this epsilon does not compare with a "
            "confidentiality epsilon", indent=2)  # fmt: skip


def show_reproduced(console: Console, found: dict[str, Any]) -> None:
    """What is done of the studies, and how long the rest will take."""
    table = Table("study", "what", "runs", "left", "time, one at a time", box=None, pad_edge=False)
    for one in found["studies"]:
        known = (
            ""
            if not one["left"]
            else "unknown until a run is done"
            if one["seconds"] is None
            else f"about {_duration(one['seconds'])}"
        )
        table.add_row(one["study"], f"{one['paper']}: {one['title']}", str(one["jobs"]), str(one["left"]), known)
    console.print(table)
    for one in found["written"]:
        say(console, f"[bold]{one['study']}[/]: {inert(one['section'])}, {inert(one['csv'])}")
    if "page" in found:
        say(console, f"{len(found['page']['studies'])} studies in {inert(found['page']['file'])}")
        for text in found["page"]["left_out"]:
            say(console, f"[red]left out[/]: {inert(text)}", indent=2)
        for name in found["page"]["unused"]:
            say(console, f"unused: {inert(name)}", indent=2)


def show_purge(console: Console, found: Purge, done: bool) -> None:
    """What a purge removes, or has removed."""
    names = ", ".join(sorted(found.parts)) or "nothing"
    if done:
        gone = found.kind == "corpus" and not found.left
        _fact(console, "removed", f"{found.folder}" if gone else names)
        return
    say(console, f"[bold]{inert(found.folder)}[/], a {'run' if found.kind == 'run' else 'screened corpus'}")
    for name, what in sorted(found.parts.items()):
        _fact(console, "removes", f"{name}: {what}")
    if not found.parts:
        _fact(console, "removes", "nothing: all that is sensitive is gone")
    if found.kept:
        _fact(console, "keeps", ", ".join(found.kept))
    if found.left:
        _fact(console, "leaves", f"{', '.join(found.left)}: not confide's own; look whether it is sensitive")
    for note in found.notes:
        _fact(console, "note", note)
    _fact(console, "", f"{found.size:,} bytes; files are unlinked, not overwritten, and copies and backups stay")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return many(max(1, round(seconds)), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
