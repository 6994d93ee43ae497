"""Small invented files in the formats of the papers' data sets. All people, places and numbers are invented.

Each `write_<corpus>(folder)` makes the files of one corpus; `WRITERS` has them all by name.
"""

import csv
import gzip
import json
from pathlib import Path

from confide.experiments.customersim import dialogues, people

CANARIES = 10


def dump(path: Path, text: str) -> None:
    """Write text, gzipped if the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode())


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_customersim_original(folder: Path, sizes=(60, 10, 10)) -> None:
    crowd = people(3, 48)
    for split, size in zip(("train", "valid", "test"), sizes, strict=True):
        rows = [{"id": f"dial-{n}", "text": one.text} for n, one in enumerate(dialogues(size, 3, split, crowd))]
        if split == "train":
            rows = [{"id": f"canary-{n}", "text": "My ID is 341752."} for n in range(CANARIES)] + rows
        dump(folder / "customersim" / f"simdial_{split}.jsonl.gz", lines(rows))
    with open(folder / "customersim" / "database_20000.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "name", "address", "phone_number", "card_number", "order_number"])
        for n, one in enumerate(crowd):
            table.writerow([n, one.name, one.address, one.phone, f"{4000000000000000 + n}", one.order])


def booking(n: int) -> tuple[str, str, str, str]:
    """An invented reference number, phone, postcode and address."""
    return f"QX{n:02d}ZK7B", f"0999955{n:04d}", f"zz{n % 10}1qx", f"{n + 10} Imaginary Lane"


def write_multiwoz22(folder: Path, sizes=(8, 2, 2)) -> None:
    acts = {}
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        found = []
        for n in range(size):
            name = f"{split.upper()}{n:04d}.json"
            reference, phone, postcode, address = booking(n)
            said = [
                ("USER", "I need a room.\nCan you book one?"),
                ("SYSTEM", f"Booked! Your reference number is {reference} ."),
                ("USER", f"{reference}, fine. Where is the Dream Inn?"),
                ("SYSTEM", f"At {address}, {postcode}, phone {phone}."),
            ]
            labels = {
                "1": [["Booking-Book", "ref", reference, *place(said[1][1], reference)]],
                "3": [
                    ["Hotel-Inform", "postcode", postcode, *place(said[3][1], postcode)],
                    ["Hotel-Inform", "phone", phone, *place(said[3][1], phone)],
                ],
            }
            start, end = place(said[3][1], address)
            frames = {
                2: [{"service": "hotel", "slots": [{"slot": "hotel-name", "start": 33, "exclusive_end": 42, "value": "-"}]}],
                3: [
                    {"service": "hotel", "slots": [
                        {"slot": "hotel-address", "start": start, "exclusive_end": end, "value": address},
                        {"slot": "taxi-destination", "copy_from": "hotel-name", "value": ["the dream inn"]},
                    ]},
                ],
            }  # fmt: skip
            turns = [
                {"turn_id": str(t), "speaker": speaker, "utterance": words, "frames": frames.get(t, [])}
                for t, (speaker, words) in enumerate(said)
            ]
            acts[name] = {
                str(t): {
                    "dialog_act": {one[0]: [[one[1], one[2]]] for one in labels.get(str(t), [])},
                    "span_info": labels.get(str(t), []),
                }
                for t in range(len(said))
            }
            found.append({"dialogue_id": name, "services": ["hotel"], "turns": turns})
        half = (size + 1) // 2
        for number, part in ((1, found[:half]), (2, found[half:])):
            dump(folder / "MultiWOZ_2.2" / split / f"dialogues_{number:03d}.json", json.dumps(part))
    dump(folder / "MultiWOZ_2.2" / "dialog_acts.json", json.dumps(acts))


def place(words: str, value: str) -> tuple[int, int]:
    return words.index(value), words.index(value) + len(value)


def write_multiwoz21(folder: Path, size: int = 20) -> None:
    rows = []
    for n in range(size):
        reference, phone, postcode, address = booking(n)
        booked = f"Booking was successful . \n Reference number is : {reference} ."
        inform = f"It is at {address} , {postcode} , ring -{phone} ."
        turns = [
            (
                "USER",
                "I need a room in the east .",
                {"Hotel-Inform": [["Area", "east"]]},
                [["Hotel-Inform", "Area", "east", 6, 6]],
            ),
            ("SYSTEM", booked, {"Booking-Book": [["Ref", reference]]}, [["Booking-Book", "Ref", reference, 8, 8]]),
            ("USER", "And where is it ?", {"Hotel-Request": [["Phone", "?"], ["Post", "?"]]}, []),
            (
                "SYSTEM",
                inform,
                {"Hotel-Inform": [["Addr", address], ["Post", postcode], ["Phone", phone]]},
                [
                    ["Hotel-Inform", "Addr", address, 3, 5],
                    ["Hotel-Inform", "Post", postcode, 7, 7],
                ],  # no span for the phone
            ),
        ]
        turns = [dict(zip(("speaker", "text", "dialog_act", "span_info"), turn, strict=True)) for turn in turns]
        rows.append({"id": f"PMUL{n:04d}", "split": "val" if n < size // 2 else "test", "turns": turns})
    dump(folder / "multiwoz" / "multiwoz21_valtest_convlab2.jsonl.gz", lines(rows))


def write_multiwoz_turns(folder: Path, size: int = 20) -> None:
    turns = ('USER\ti need a "room for {} people\thotel, taxi\n', "SYSTEM\tYour room is no. {} .\t\n")
    rows = [turns[n % 2].format(n) for n in range(size)]
    dump(folder / "multiwoz" / "multiwoz22_train_dialogues_001_utterances.tsv.gz", "".join(rows))


def write_wikitext2(folder: Path) -> None:
    for split, articles in (("train", 6), ("valid", 2), ("test", 2)):
        text = "".join(
            f" \n = Invented Lake {n} = \n \n The lake , known as Lake {n} , is {n} @.@ 5 km long . \n It is deep . \n \n"
            for n in range(articles)
        )
        dump(folder / "wikitext2" / f"{split}.txt.gz", text)


def write_abcd(folder: Path, sizes=(6, 2, 2)) -> None:
    found = {}
    for split, size in zip(("train", "dev", "test"), sizes, strict=True):
        found[split] = [conversation(100 * len(split) + n, n) for n in range(size)]
    dump(folder / "abcd" / "abcd_v1.1.json.gz", json.dumps(found))


def conversation(number: int, n: int) -> dict:
    first, last = (("mira", "quill"), ("otto", "fenwick"))[n % 2]
    user, phone, order = f"{first[0]}{last}{n}", f"(999) 555-01{n:02d}", f"77{n:08d}"
    original = [
        ["agent", "Hi! May I have your name?"],
        ["customer", f"{first.title()} {last.title()}"],
        ["action", f"Account has been pulled up for {first.title()} {last.title()}."],
        ["agent", f"Thanks {first.title()}. Your phone and address?"],
        ["customer", f"999-555-01{n:02d}, and {12 + n} Nowhere Ave, Dreamton, ZQ 9990{n}"],
        ["customer", f"{user.upper()} or {user}@email.com, order {order}, bought in May\nI think"],
        ["agent", "All done."],
    ]
    card = {
        "personal": {"customer_name": f"{first} {last}", "email": f"{user}@email.com", "member_level": "gold", "phone": phone,
                     "username": user},
        "order": {"street_address": f"{12 + n} nowhere ave", "full_address": f"{12 + n} nowhere ave  dreamton, zq 9990{n}",
                  "city": "dreamton", "order_id": order, "purchase_date": "2019-11-06", "state": "zq", "zip_code": f"9990{n}"},
        "product": {"names": ["plain boots"], "amounts": [94]},
        "flow": "product_defect", "subflow": "return_size",
    }  # fmt: skip
    delexed = [
        {"speaker": turn[0], "text": turn[1].lower(), "turn_count": t, "candidates": [1, 2]}
        for t, turn in enumerate(original)
    ]
    return {"convo_id": number, "scenario": card, "original": original, "delexed": delexed}


def write_abcd_text(folder: Path, size: int = 20) -> None:
    text = "".join(
        f"SYS:Hello. How may I help?\n\nUSR:This is Mira Quill {n}\n\nACT:Account has been pulled up for Mira Quill {n}.\n\n"
        "<|endoftext|>"
        for n in range(size)
    )
    dump(folder / "abcd" / "abcd_original_valid.txt.gz", text)


def table(folder: str, columns, dev: str, row, size: int = 30):
    """A writer of a GLUE task: `row` makes the fields of row n; train has `size` rows, dev a fifth of it."""

    def write(below: Path) -> None:
        for name, count in (("train", size), (dev, size // 5)):
            rows = [columns, *(row(n) for n in range(count))]
            dump(below / folder / f"{name}.tsv", "".join("\t".join(fields) + "\n" for fields in rows))

    return write


PARSED = ["sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse", "sentence2_parse"]
MNLI = ["index", "promptID", "pairID", "genre", *PARSED, "sentence1", "sentence2", "label1", "gold_label"]
write_sst2 = table("SST-2", ["sentence", "label"], "dev", lambda n: [f'a " charming film no. {n}', str(n % 2)])
write_mnli = table(
    "MNLI", MNLI, "dev_matched",
    lambda n: [*(str(n) for _ in range(8)), f"Lake {n} is deep.", f'"Lake {n} is wet.', "neutral", "neutral"],
)  # fmt: skip
write_qqp = table(
    "QQP", ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"], "dev",
    lambda n: [str(n), "1", "2", f"Is lake {n} deep?", f"How deep is lake {n}?", str(n % 2)],
)  # fmt: skip
write_qnli = table(
    "QNLI", ["index", "question", "sentence", "label"], "dev",
    lambda n: [str(n), f"Is lake {n} deep?", f"Lake {n} is deep.", "entailment" if n % 2 else "not_entailment"],
)  # fmt: skip

WRITERS = {
    "customersim-original": write_customersim_original, "multiwoz22": write_multiwoz22, "multiwoz21": write_multiwoz21,
    "multiwoz-turns": write_multiwoz_turns, "wikitext2": write_wikitext2, "abcd": write_abcd, "abcd-text": write_abcd_text,
    "sst2": write_sst2, "mnli": write_mnli, "qqp": write_qqp, "qnli": write_qnli,
}  # fmt: skip
