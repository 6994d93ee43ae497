"""What privacy costs on the original CustomerSim: perplexity of each method at its sound ε.

python benchmarks/utility.py --data FOLDER --reference DIR --out FOLDER [--rows NAMES] [--split test|valid] [--limit N] [--json]

FOLDER holds simdial_{train,valid,test}.jsonl.gz and database_20000.csv.gz (wyshi/lm_privacy); DIR holds GPT-2's tokenizer.
The ten canary lines of the training file are dropped. Every row of the table is a run below --out, trained if it is not there
yet, resumed if it was interrupted, and then evaluated on raw text: perplexity per GPT-2 token, of all tokens, of those of no
secret and of those of a secret (names by the table of people, the rest by the `customersim` policy), on whole dialogues and
on single turns. Vocabularies come from `confide simulate`, which never saw the corpus.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MISSED = 0.1
DELTA = 8e-5
COMMON: dict[str, Any] = {"model": "lstm", "vocabulary_size": 2048, "max_length": 256, "microbatch": 64, "warmup": 0.05}
PUBLIC: dict[str, Any] = {"schedule": "cosine", "learning_rate": 4e-3, "batch_size": 64}
NOISED: dict[str, Any] = {"delta": DELTA, "private_batch_size": 512, "private_schedule": "linear", "clip_norm": 0.05}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {  # name: (records, options)
    "plain": ("document", {**PUBLIC, "method": "plain", "epochs": 8}),
    "crt-turn": (
        "turn",
        {**PUBLIC, **NOISED, "method": "crt", "epsilon": 2.5, "epochs": 6, "batch_size": 128, "microbatch": 128,
         "learning_rate": 3e-3, "private_batch_size": 2048, "private_learning_rate": 2e-3, "warmup": 0.02, "clip_norm": 1.0},
    ),
    "public-turns": ("public-turns", {**PUBLIC, "method": "plain", "epochs": 3, "batch_size": 128, "microbatch": 128}),
    "crt": (
        "document",
        {**NOISED, "method": "crt", "epsilon": 2.5, "epochs": 4, "learning_rate": 2e-2, "model": "public-turns"},
    ),
    "dpsgd": ("document", {**NOISED, "method": "dpsgd", "epsilon": 2.74, "epochs": 10, "learning_rate": 1e-2}),
    "jft": (
        "document",
        {**NOISED, **PUBLIC, "method": "jft", "epsilon": 2.74, "epochs": 6, "phase1_epochs": 4, "private_learning_rate": 2e-3},
    ),
}  # fmt: skip


def prepare(data: Path, out: Path) -> None:
    """The corpus with the places of its secrets, outside text for a vocabulary, and the screened folders."""
    from confide.experiments.customersim import write_corpus
    from confide.policies import load, merged
    from confide.screening import Screened, screen

    people = f"customersim:{data / 'database_20000.csv.gz'}"
    policy = load(people)
    for split in ("train", "valid", "test"):
        if (out / f"{split}.jsonl").exists():
            continue
        with gzip.open(data / f"simdial_{split}.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        rows = [row for row in rows if not row["text"].startswith("My ID is 341752")]
        with open(out / f"{split}.jsonl", "w", encoding="utf-8") as file:
            for row in rows:
                text = row["text"].rstrip("\n")
                secrets = [{"start": start, "end": end} for start, end in merged(policy.find(text))]
                file.write(json.dumps({"id": row["id"], "text": text, "secrets": secrets}) + "\n")
    if not (out / "outside").exists():
        write_corpus(out / "outside", 5000, 0, 10_000, lambda: None)
    missing = f"miss({people}, {MISSED})"
    for unit in ("turn", "document"):
        if not (out / f"screened-{unit}").exists():
            screen(
                str(out / "train.jsonl"),
                missing,
                out / f"screened-{unit}",
                unit=unit,
                conservative="allowlist",
                dedup="off",
            )
    if not (out / "screened-public-turns").exists():
        with open(out / "public-turns.jsonl", "w", encoding="utf-8") as file:
            for batch in Screened.open(out / "screened-turn").batches("public", ("text", "group")):
                file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
        screen(
            str(out / "public-turns.jsonl"), people, out / "screened-public-turns", unit="document",
            conservative="allowlist", dedup="off",
        )  # fmt: skip


def train(out: Path, name: str) -> Any:
    from confide.training import Run, make_plan, plan_of, train_plan

    records, options = ROWS[name]
    options = {**COMMON, **options}
    if options["model"] in ROWS:
        options["model"] = str(train(out, options["model"]).folder / "model")
        del options["vocabulary_size"]
    else:
        options["vocabulary_from"] = str(out / "outside" / "train.jsonl")
    folder = out / name
    if (folder / "model").exists():
        return Run(folder)
    begun = (folder / "config.yaml").exists()
    plan = plan_of(folder) if begun else make_plan(out / f"screened-{records}", **options)
    return train_plan(plan, folder, resume=begun)


def evaluate(out: Path, run: Any, reference: Any, split: str, limit: int) -> dict[str, Any]:
    from confide.models import load_trained
    from confide.training.evaluation import evaluate as score
    from confide.training.validation import Held

    model, tokenizer = load_trained(run.folder / "model")
    dialogues, turns = [], []
    for line in (out / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()[:limit]:
        row = json.loads(line)
        spans = [(one["start"], one["end"]) for one in row["secrets"]]
        dialogues.append(Held(row["text"], tuple(spans)))
        for low, high in (match.span() for match in re.finditer(r"[^\n]+", row["text"])):
            inside = [
                (max(start, low) - low, min(end, high) - low) for start, end in spans if start < high and end > low
            ]
            turns.append(Held(row["text"][low:high], tuple(inside)))
    found: dict[str, Any] = {}
    for unit, held in (("dialogues", dialogues), ("turns", turns)):
        scored = score(model, tokenizer, held, reference=reference, max_length=512)
        found[unit] = {
            "perplexity": scored["perplexity"],
            "non_secret": scored["non_secret"]["perplexity"],
            "secret": scored["secret"]["perplexity"],
            "bits_per_character": scored["bits_per_character"],
            "accuracy": scored["accuracy"],
        }
    certificate = run.certificate
    if certificate is not None:
        stated = [g for g in certificate["guarantees"] if g["epsilon"] is not None]
        found["epsilon"], found["guarantee"] = stated[0]["epsilon"], stated[0]["name"]
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True)
    arguments.add_argument("--reference", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--rows", default=",".join(ROWS))
    arguments.add_argument("--split", default="test", choices=("test", "valid"))
    arguments.add_argument("--limit", type=int, default=1000)
    arguments.add_argument("--quick", action="store_true", help="the first row alone, on a few dialogues")
    arguments.add_argument("--json", action="store_true")
    given = arguments.parse_args()
    from confide.models.tokens import pretrained

    given.out.mkdir(parents=True, exist_ok=True)
    prepare(given.data, given.out)
    names = ["plain"] if given.quick else given.rows.split(",")
    limit = 20 if given.quick else given.limit
    reference = pretrained(str(given.reference))
    found = {name: evaluate(given.out, train(given.out, name), reference, given.split, limit) for name in names}
    if given.json:
        print(json.dumps(found))
        return
    table = Table("run", "unit", "epsilon", "PPL all / non-secret / secret: dialogues", "turns", "bits a character")
    for name, row in found.items():
        cells = [
            "{perplexity:.2f} / {non_secret:.3f} / {secret:.0f}".format(**row[unit]) for unit in ("dialogues", "turns")
        ]
        epsilon = f"{row['epsilon']:.2f} ({row['guarantee']})" if "epsilon" in row else "none"
        table.add_row(name, ROWS[name][0], epsilon, *cells, f"{row['dialogues']['bits_per_character']:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
