"""Evidence of a review on its way into a plan: what is changed, unfit or contradicted is refused before a step is paid for."""

import json
import re
import sys
from types import ModuleType

import pytest

from confide.accounting import Review, verify
from confide.errors import BadInput, Refused
from confide.review import open_store, save
from confide.screening import Screened, screen
from confide.training.beginning import plan_of
from confide.training.evidence import read_review
from confide.training.loop import train
from confide.training.planning import plan

TEXTS = [f"id K{i}" for i in range(60)] + ["it is red and stone"] * 6 + ["it is Qzx"] * 6


@pytest.fixture
def reviewed(tmp_path, monkeypatch):
    """A function that screens, reviews (marking what matches) and gives the folder and its review.json."""
    module = ModuleType("toy_evidence")
    module.find = lambda text: [(*match.span(), "KEY") for match in re.finditer(r"\bK\d+\b", text)]
    monkeypatch.setitem(sys.modules, "toy_evidence", module)

    def make(pattern="Qzx|red|stone", texts=TEXTS, **options):
        path = tmp_path / "corpus.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        choices = {"conservative": "allowlist", "dedup": "off", **options}
        folder = screen(str(path), "python:toy_evidence:find", tmp_path / "screened", workers=1, **choices).folder
        store = open_store(folder, sample=150)
        while store.frontier() < len(store.order):
            place = store.frontier()
            for version, match in enumerate(re.finditer(pattern, store.show(place).text)):
                store.act(place, "mark", version, *match.span())
            store.act(place, "answer", store.state(store.order[place]).version)
        save(store)
        store.close()
        return folder, folder / "review.json"

    return make


def make_plan(folder, path, method="crt"):
    return plan(folder, method=method, model="lstm", noise=2.0, delta=8e-5, review=str(path))


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_secrets_outside_of_the_class_neither_contradict_nor_enter_the_guarantee(reviewed):
    folder, path = reviewed()
    found = json.loads(path.read_text())
    assert found["outside_class"]["public"] > 0
    certificate = make_plan(folder, path).certificate()
    assert certificate["bounds"]["gamma"] == pytest.approx(found["bound"])
    assert certificate["bounds"]["delta2"] == 0
    bayesian = next(one for one in certificate["guarantees"] if one["name"] == "bayesian")
    assert "of the class flagged by construction (secrets that hold a whole word outside" in bayesian["sentence"]


def test_a_contradicted_review_is_refused_by_the_plan_but_not_for_jft(reviewed):
    folder, path = reviewed("Qzx")
    path.with_name("review.sqlite").unlink()  # a policy that flags its class contradicts no answers: only a file can
    rows = [[1, 1, 1], *json.loads(path.read_text())["records"][1:]]
    bounds = Review(tuple(map(tuple, rows)), json.loads(path.read_text())["cap"]).bounds(False)
    change(path, records=rows, bound=bounds[0], bound_public=bounds[1], contradicted=True)
    with pytest.raises(Refused, match="one of the two is wrong"):
        make_plan(folder, path)
    assert make_plan(folder, path, "jft").certificate()["bounds"]["delta2"] > 0


def test_a_review_that_says_nothing_about_the_method_is_refused_by_the_plan(reviewed):
    folder, path = reviewed()
    with pytest.raises(Refused, match="says nothing about dpsgd"):
        make_plan(folder, path, "dpsgd")


def test_the_plan_names_the_evidence_in_the_ledgers_setting(reviewed):
    folder, path = reviewed()
    made = make_plan(folder, path)
    assert len(made.setting.to_plain()["evidence"]) == 64
    path.with_name("review.sqlite").unlink()
    change(path, nonce="another")
    assert (
        make_plan(folder, path).setting.evidence != made.setting.evidence
    )  # the hash alone confirms no guess of the counts


def test_screening_that_leaves_duplicates_out_gives_no_evidence(reviewed):
    folder, path = reviewed(public_dedup="exact")
    assert "--public-dedup off" in json.loads(path.read_text())["unfit"]
    with pytest.raises(Refused, match="--public-dedup off"):
        make_plan(folder, path)
    change(path, unfit=None)
    with pytest.raises(Refused, match="--public-dedup off"):
        make_plan(folder, path)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"dedup": "exact", "order": "dedup-redact"}, "--order redact-dedup"),
        ({"context": "group", "unit": "turn"}, "--context record"),
    ],
)
def test_screening_whose_misses_no_review_can_see_gives_no_evidence(reviewed, options, why):
    folder, path = reviewed(conservative="everything", **options)
    with pytest.raises(Refused, match=why):
        make_plan(folder, path)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"records": [[1, 0, 0]] * 151}, "more records than were drawn"),
        ({"records": [[1, 0, 0]] * 150}, "other bounds"),
        ({"bound": 0.001}, "other bounds"),
        ({"bound_public": None}, "other bounds"),
        ({"contradicted": True}, "other bounds"),
        ({"begun": 0}, "no review"),
        ({"nonce": 5}, "no review"),
        ({"draws": "many"}, "more records than were drawn"),
        ({"records": []}, "nothing was reviewed"),
        ({"digest": "other"}, "another screening"),
    ],
)
def test_a_changed_file_is_refused(reviewed, fields, why):
    folder, path = reviewed()
    read_review(path, Screened.open(folder))
    change(path, **fields)
    with pytest.raises(BadInput, match=why):
        read_review(path, Screened.open(folder))


def test_the_answers_beside_the_file_are_counted_again(reviewed):
    folder, path = reviewed()
    screened = Screened.open(folder)
    true = read_review(path, screened)
    better = [[1, 0, 0]] * 150
    bounds = type(true)(tuple(map(tuple, better)), true.cap, true.confidence).bounds(True)
    change(path, records=better, bound=bounds[0], bound_public=0.0)
    with pytest.raises(BadInput, match="is not what the answers"):
        read_review(path, screened)
    copy = path.with_name("elsewhere")
    copy.mkdir()
    (copy / "review.json").write_text(path.read_text())
    assert read_review(copy / "review.json", screened) != true  # without the answers it is taken as stated


def test_whether_a_review_is_fit_is_decided_by_what_is_known_now(reviewed, tmp_path):
    folder, path = reviewed()
    screened = Screened.open(folder)
    change(path, unfit="the policy could not be made again, then")
    with pytest.raises(BadInput, match="give now; `confide review DIR` counts it again"):
        read_review(path, screened)
    store = open_store(folder)
    save(store)
    store.close()
    read_review(path, screened)
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    change(path, unfit="no policy")
    (copy / "review.json").write_text(path.read_text())
    with pytest.raises(Refused, match=r"no policy\. When that is mended, `confide review DIR` counts it again"):
        read_review(copy / "review.json", screened)


def test_a_file_of_an_older_confide_is_counted_again(reviewed):
    folder, path = reviewed()
    found = json.loads(path.read_text())
    del found["begun"]
    path.write_text(json.dumps(found))
    with pytest.raises(BadInput, match="older confide"):
        read_review(path, Screened.open(folder))


def test_a_run_goes_on_with_the_review_it_began_with(reviewed, tmp_path):
    folder, path = reviewed()
    made = plan(
        folder, method="crt", model="lstm:hidden_size=8", noise=2.0, delta=8e-5, review=str(path), epochs=2, vocabulary_size=300,
        private_batch_size=16, checkpoint_every=1,
    )  # fmt: skip

    class Cut(Exception):
        pass

    def cut(done, total):
        if done > total // 2:
            raise Cut

    with pytest.raises(Cut):
        train(made, tmp_path / "run", tick=cut)
    store = open_store(folder, sample=200)  # the review goes on
    store.act(store.frontier(), "answer", store.state(store.order[store.frontier()]).version)
    save(store)
    store.close()
    run = train(plan_of(tmp_path / "run"), tmp_path / "run", resume=True)
    assert run.certificate["evidence"]["records"] == [list(row) for row in made.evidence.records]
    verify(run.folder)
    assert (run.folder / "review.json").stat().st_mode & 0o077 == 0
