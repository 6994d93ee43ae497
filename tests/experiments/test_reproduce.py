"""confide reproduce at the scale of seconds: every study's description, cached runs, results from runs that hold only."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from confide.accounting import PoissonGaussian, curve, verify
from confide.accounting.guarantees import up
from confide.accounting.papers import crt_bayesian_epsilon
from confide.errors import BadInput, Contradiction
from confide.experiments import reproduce as module
from confide.experiments.claims import holds
from confide.experiments.jobs import FINISHED, KEPT, PRIVATE_LINE, Bench, Job, judge, skeletons
from confide.experiments.numbers import COLUMNS, numbers, of_another_run
from confide.experiments.pages import section, table
from confide.experiments.reproduce import STUDIES, chosen, command, make_all, render
from confide.experiments.results import Point, Result, as_csv, collect, left_of
from confide.experiments.scales import SCALES
from confide.experiments.study import Check, Study, Sweep, jobs
from confide.models import load_trained
from confide.screening import Screened, screen

SMOKE = SCALES["smoke"]


def small(name, *rows):
    """A study on simulated dialogues, of the rows whose names begin with one of these."""
    study = module._simulated(STUDIES[name])
    return replace(study, rows=tuple(row for row in study.rows if row.name.startswith(rows)))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("reproduce"), own_tokens=True)


@pytest.fixture(scope="module")
def done(bench):
    """Figure 3's lines of the LSTM, done."""
    study = small("fig3", "redacted lstm, CustomerSim", "crt lstm, CustomerSim")
    make_all([study], SMOKE, bench)
    return study


def test_every_study_describes_jobs_with_known_columns_and_rows():
    for study in STUDIES.values():
        for scale in SCALES.values():
            planned = jobs(study, scale)
            assert scale is SMOKE or len({one.job.key for one in planned}) == len(planned), study.name
        assert set(study.columns) <= set(COLUMNS), study.name
        assert study.y is None or study.y in study.columns, study.name
        rows = {row.name for row in study.rows} | {row["row"] for row in (study.computed() if study.computed else ())}
        rows |= {row["row"] for row in study.published}
        assert len({row.name for row in study.rows}) == len(study.rows), study.name
        for check in study.checks:
            assert set(check.rows) <= rows, (study.name, check)
            assert check.column in COLUMNS


def test_no_noised_row_asks_for_larger_batches_than_it_has_documents():
    for study in STUDIES.values():
        for planned in jobs(study, SCALES["cpu"]):
            job = planned.job
            if job.screen.get("unit") != "document" or job.documents is None:
                continue
            kept = job.documents * (1 - job.train.get("validation_share", 0))
            assert job.train.get("private_batch_size", 0) <= kept, (study.name, planned.row.name)


def test_a_key_changes_with_everything_that_a_run_depends_on():
    job = Job("customersim-small", {"policy": "digits"}, {"model": "lstm", "method": "plain", "seed": 0})
    others = [replace(job, corpus="wikitext2"), replace(job, screen={"policy": "patterns"}), replace(job, documents=5),
              replace(job, train={**job.train, "seed": 1}), replace(job, attack={"only": ["exposure"]}), replace(job, split="valid"),
              replace(job, start=job), replace(job, public_only=True), replace(job, vocabulary="sst2")]  # fmt: skip
    assert len({one.key for one in [job, *others]}) == 1 + len(others)
    assert replace(job, screen=dict(job.screen)).key == job.key


def test_runs_are_done_once_and_an_interrupted_sweep_goes_on(bench, done, monkeypatch):
    assert left_of([done], SMOKE, bench)[0]["left"] == 0
    made = []
    monkeypatch.setattr(module, "make", lambda job, bench: made.append(job))
    make_all([done], SMOKE, bench)
    assert made == []
    lost = jobs(done, SMOKE)[1].job
    (bench.run(lost) / FINISHED).rename(bench.run(lost) / "away")
    try:
        make_all([done], SMOKE, bench)
        assert made == [lost]
        (status,) = left_of([done], SMOKE, bench)
        assert status["left"] == 1
        assert status["seconds"] > 0
    finally:
        (bench.run(lost) / "away").rename(bench.run(lost) / FINISHED)


def test_results_show_what_was_measured_and_nothing_else(bench, done):
    result = collect(done, SMOKE, bench)
    assert result.left == 0
    assert result.refused == ()
    assert {row["row"] for row in result.rows} == {row.name for row in done.rows}
    for row in result.rows:
        assert 0 <= row["exposure_mean"] <= row["exposure_max"] <= 9.97
        assert row["ppl"] > 1
        assert ("epsilon" in row) == row["row"].startswith("crt")
        if "epsilon" in row:
            assert row["epsilon"] <= 4.0
            assert row["paper_epsilon"] > 0
    missed = [row for row in result.rows if row["row"].startswith("crt") and row["value"]]
    # Of a union of policies mask-consistency is not proven: nothing is gained from what it finds, whatever the paper's count says
    assert all(row["bayesian"] == row["epsilon"] > row["paper_bayesian"] > 0 for row in missed)
    rows = list(csv.DictReader(io.StringIO(as_csv(result))))
    assert [float(one["ppl"]) for one in rows] == pytest.approx([row["ppl"] for row in result.rows], rel=1e-5)
    text = section(result, ["results/fig3.svg"])
    assert "Sound ε of crt lstm, CustomerSim: per-secret (secrets that hold a whole word outside" in text
    assert "common punctuation), substitution, k = 1, unit turn, poisson sampling, δ = 8e-05." in text
    size = "trained on the first 60 documents, a turn a record, cut at 64 tokens; judged on 5 texts of the test split"
    assert f"* lstm on customersim-small: {size}. Conservative policy allowlist, policy" in text
    assert (
        "policy `union(customersim, digits)`; of the secrets that are known in them it misses 0.0%, and 0.0% stand where neither"
        in text
    )
    assert "On purpose it misses 0% or 50% of what it finds." in text
    steps = {row["noised_steps"] for row in missed}
    assert f"* crt lstm, CustomerSim: {min(steps)} noised steps at rate " in text
    for row in result.rows:
        assert f"{row['exposure_mean']:.2f}" in text or f"{row['exposure_mean']:.3f}" in text


def test_a_run_counts_only_if_its_certificate_and_its_data_hold(bench, done, tmp_path):
    other = Bench(tmp_path / "copy", own_tokens=True)
    shutil.copytree(bench.folder, other.folder)
    mine = [one.job for one in jobs(done, SMOKE) if one.row.method == "crt"]
    path = other.run(mine[0]) / "certificate.json"
    certificate = json.loads(path.read_text())
    certificate["guarantees"][0]["epsilon"] = 0.5
    path.write_text(json.dumps(certificate))
    data = json.loads((other.run(mine[1]) / FINISHED).read_text())
    data["data"]["test"] = "0" * 64
    (other.run(mine[1]) / FINISHED).write_text(json.dumps(data))
    result = collect(done, SMOKE, other)
    assert {row["row"] for row in result.rows} == {"redacted lstm, CustomerSim"}
    assert len(result.refused) == 2
    assert "another test split" in result.refused[1]
    assert "Left out" in section(result)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("certificate.json", None, "lost its certificate"),
        ("evaluation.json", "{", "damaged"),
        ("job.json", "[]", "damaged"),
    ],
)
def test_a_run_that_lost_something_is_named_and_left_out(bench, done, tmp_path, name, text, says):
    other = Bench(tmp_path / "copy", own_tokens=True)
    shutil.copytree(bench.folder, other.folder)
    mine = next(one.job for one in jobs(done, SMOKE) if one.row.method == "crt")
    (other.run(mine) / name).unlink()
    if text is not None:
        (other.run(mine) / name).write_text(text)
    result = collect(done, SMOKE, other)
    assert len(result.refused) == 1
    assert says in result.refused[0]
    left_of([done], SMOKE, other)


def test_a_certificate_of_another_run_does_not_count(bench, done, tmp_path):
    other = Bench(tmp_path / "copy", own_tokens=True)
    shutil.copytree(bench.folder, other.folder)
    mine = next(one.job for one in jobs(done, SMOKE) if one.row.method == "crt")
    study = small("fig3", "sdp lstm, CustomerSim")
    make_all([study], SMOKE, other)
    for name in ("certificate.json", "ledger.jsonl"):
        shutil.copy(other.run(jobs(study, SMOKE)[0].job) / name, other.run(mine) / name)
    (
        other.run(mine) / "config.yaml"
    ).unlink()  # which would tell by itself, as would the weights; what a page keeps of a run has neither
    shutil.rmtree(other.run(mine) / "model")
    assert "of another run" in collect(done, SMOKE, other).refused[0]


def test_a_run_that_another_tokenizer_has_judged_does_not_count(bench, done, tmp_path):
    """Perplexities of two reference tokenizers do not compare."""
    job = jobs(done, SMOKE)[0].job
    shutil.copytree(bench.folder, tmp_path / "copy")
    other = Bench(tmp_path / "copy", reference=str(bench.run(job) / "model"))
    assert "ppl" in numbers(job, other)
    judged = other.run(job) / "evaluation.json"
    found = json.loads(judged.read_text())
    found["documents"]["reference_tokens"] += 1
    judged.write_text(json.dumps(found))
    with pytest.raises(Contradiction, match="another reference tokenizer"):
        numbers(job, other)


@pytest.mark.parametrize(
    ("name", "says"),
    [("certificate.json", "is not the one that the run left"), ("evaluation.json", "is not the one that the run left")],
)
def test_a_fileof_another_run_does_not_count_among_those_that_were_kept(bench, done, tmp_path, name, says):
    kept = tmp_path / "runs"
    keeping = replace(bench, kept=kept)
    mine, other = (
        next(one.job for one in jobs(done, SMOKE) if one.row.method == method) for method in ("crt", "redacted")
    )
    for job in (mine, other):
        keeping.keep(job)
    elsewhere = Bench(tmp_path / "elsewhere", own_tokens=True, kept=kept)
    assert "ppl" in numbers(mine, elsewhere)
    text = (kept / mine.name / name).read_text()
    (kept / mine.name / name).write_text(
        text.replace("1", "2", 1) if name == "certificate.json" else (kept / other.name / name).read_text()
    )
    with pytest.raises(Contradiction, match=says):
        numbers(mine, elsewhere)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"epsilon": 1.0}, "epsilon"),
        ({"clip_norm": 3.0}, "clipping norm"),
        ({"noise": 9.0, "epsilon": None}, "noise of train"),
    ],
)
def test_a_certificate_is_held_against_what_its_run_was_to_do(bench, done, change, wrong):
    job = next(one.job for one in jobs(done, SMOKE) if one.row.method == "crt")
    assert not list(of_another_run(job, bench, verify(bench.run(job)).certificate, bench.run(job)))
    other = replace(job, train={**job.train, **change})
    assert list(of_another_run(other, bench, verify(bench.run(job)).certificate, bench.run(job))) == [wrong]
    elsewhere = replace(job, screen={**job.screen, "dedup": "near"})
    assert list(of_another_run(elsewhere, bench, verify(bench.run(job)).certificate, bench.run(job))) == [
        "screened corpus"
    ]


def test_a_perplexity_is_that_of_the_nats_that_were_measured(bench, done, tmp_path):
    other = Bench(tmp_path / "copy", own_tokens=True)
    shutil.copytree(bench.folder, other.folder)
    job = jobs(done, SMOKE)[0].job
    before = numbers(job, other)
    judged = other.run(job) / "evaluation.json"
    judged.write_text(re.sub(r'"perplexity": [0-9.]+', '"perplexity": 1.5', judged.read_text()))
    assert numbers(job, other) == before


def test_what_a_policy_misses_is_counted_by_the_secrets_that_are_known(done, tmp_path, monkeypatch):
    text = "SYS: Your name?\nUSR: Zorgal Quint\nUSR: 555-1234"
    secrets = [{"start": text.index(one), "end": text.index(one) + len(one)} for one in ("Zorgal Quint", "555-1234")]
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": text, "secrets": secrets}) + "\n")
    (tmp_path / "valid.jsonl").write_text('{"text": "555"}\n')
    monkeypatch.setattr(Bench, "corpus", lambda self, name: tmp_path)
    job = jobs(done, SMOKE)[0].job

    def count(policy, conservative, unit, split="test"):
        screen = {"policy": policy, "conservative": conservative, "unit": unit}
        return tuple(Bench(tmp_path).misses(replace(job, screen=screen, split=split)).values())

    assert count("patterns", "nothing", "turn") == (0.5, 0.5)
    assert count("miss(patterns, 0.9, 0)", "nothing", "turn") == (0.5, 0.5)  # but for what it misses on purpose
    assert count("patterns", "allowlist", "turn") == (0.5, 0.0)
    assert count("patterns", "nothing", "document") == (0.5, 0.0)
    assert count("everything", "nothing", "turn") == (0.0, 0.0)
    assert count("patterns", "nothing", "turn", "valid") == ()


def test_where_nobody_knows_the_secrets_those_of_the_policy_digits_are_judged_apart(bench, done, monkeypatch, tmp_path):
    job = jobs(done, SMOKE)[0].job
    (tmp_path / "test.jsonl").write_text('{"text": "My code is 482913, or so."}\n')
    monkeypatch.setattr(Bench, "corpus", lambda self, name: tmp_path)
    loaded = load_trained(bench.run(job) / "model")
    assert "secret" not in judge(job, bench, *loaded)["documents"]
    found = judge(replace(job, screen={**job.screen, "policy": "digits"}), bench, *loaded)["documents"]
    assert found["secret"]["tokens"] > 0
    assert found["non_secret"]["tokens"] > 0


def test_a_missed_canary_stays_missed_in_a_trial():
    studies = {study.name: study for study in module._all(SMOKE, Bench(Path("x"), Path("data")))}
    named = {one.row.name: one.job.screen["canaries"] for one in jobs(studies["jft-fig2"], SMOKE)}
    assert named["jft, missed"].startswith("policy=missed,")
    assert "policy" not in named["jft, caught"]
    assert len({one.job.key for one in jobs(studies["jft-fig2"], SMOKE)}) == len(named)


def test_a_study_that_cannot_be_simulated_asks_for_its_data(tmp_path):
    with pytest.raises(BadInput, match="needs texts that nobody can simulate"):
        command("jft-fig2", scale="smoke", data=None, out=tmp_path / "out")


def test_a_contradicted_certificate_is_said_to_be(bench, done, tmp_path):
    other = Bench(tmp_path / "copy", own_tokens=True)
    shutil.copytree(bench.folder, other.folder)
    mine = next(one.job for one in jobs(done, SMOKE) if one.row.method == "crt")
    found = json.loads((other.run(mine) / "attacks.json").read_text())
    (other.run(mine) / "attacks.json").write_text(json.dumps({**found, "contradictions": ["an audit"]}))
    assert f"**An attack contradicts the certificate of {mine.name}.**" in section(collect(done, SMOKE, other))


def test_runs_of_a_search_compose():
    study = replace(STUDIES["search"], checks=())
    event = PoissonGaussian(0.1, 2.0, 50)
    row = {"value": None, "epsilon": 1.0, "guarantee": "per-secret", "adjacency": "substitution", "k": 1, "unit": "document", "sampler": "poisson",
           "delta": 1e-5, "weights": "outside", "whose": "all secrets", "events": [event]}  # fmt: skip
    rows = [{**row, "row": "a", "seed": n, "corpus": "sst2"} for n in range(3)] + [
        {**row, "row": "b", "seed": 0, "corpus": "customersim"}
    ]
    text = section(Result(study, SMOKE, tuple(rows), 0, ()))
    together, more = (
        curve([PoissonGaussian(0.1, 2.0, steps)], "substitution", 1).epsilon(1e-5) for steps in (150, 200)
    )
    assert (
        f"Noised runs of the search on sst2, 3 so far, together cost ε = {up(together)} at δ = 1e-05, and ε = {up(more)} with one more run like the last"
        in text
    )
    assert "Noised runs of the search on customersim, 1 so far, together cost nothing, since it is simulated." in text


def test_the_page_is_made_of_runs_alone(bench, done, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STUDIES", {done.name: done})
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    results = render(SMOKE, bench, page)
    assert [one.study.name for one in results] == ["fig3"]
    text = page.read_text()
    assert "CRT, Figure 3" in text
    assert "(results/fig3.svg)" in text
    verdicts = {ours: [holds(one, results[0])[0] for one in done.checks if one.ours is ours] for ours in (False, True)}
    assert all(verdicts.values())
    counts = " | ".join(" / ".join(str(some.count(one)) for one in (True, False, None)) for some in verdicts.values())
    total = len(jobs(done, SMOKE))
    link = "crt-figure-3-exposure-of-ten-canaries-20-copies-each-against-the-share-of-secrets-missed"
    assert f"| CRT, Figure 3 | [{done.title}](#{link}) | {counts} | {total} of {total} |" in text
    assert {one.name for one in (tmp_path / "docs" / "results").iterdir()} == {"fig3.csv", "fig3.svg"}
    with pytest.raises(BadInput, match="no finished run"):
        render(SMOKE, Bench(tmp_path / "empty"), page)


def test_what_a_page_is_made_from_is_kept_beside_it_and_counts_as_done(bench, done, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "STUDIES", {done.name: done})
    page, kept = tmp_path / "results.md", tmp_path / "results" / "runs"
    render(SMOKE, replace(bench, kept=kept), page)
    (kept / "a-run-of-another-description").mkdir()
    files = {file.name for run in kept.iterdir() for file in run.iterdir()}
    assert {"certificate.json", "ledger.jsonl", "evaluation.json", "attacks.json", FINISHED} <= files <= set(KEPT)
    written = {path: path.read_text() for path in (page, page.with_suffix("") / "fig3.csv")}
    elsewhere = Bench(tmp_path / "elsewhere", own_tokens=True, kept=kept)
    render(SMOKE, elsewhere, page)
    assert {path: path.read_text() for path in written} == written
    assert (kept / "a-run-of-another-description").exists()
    assert left_of([done], SMOKE, elsewhere)[0]["left"] == 0
    assert left_of([done], SMOKE, replace(elsewhere, kept=None))[0]["left"] == len(jobs(done, SMOKE))
    attacks = json.loads((next(kept.glob("*-crt-*")) / "attacks.json").read_text())
    assert set(attacks) <= {"exposure", "membership", "contradictions"}
    assert "skipped" not in json.dumps(attacks)
    found = command(None, scale="smoke", data=None, out=tmp_path / "elsewhere", page=page)
    assert "a-run-of-another-description" in found["page"]["unused"]
    damaged = next(kept.glob("*-crt-*")) / "certificate.json"
    damaged.write_text(damaged.read_text().replace('"epsilon": ', '"epsilon": 1e-3, "was": ', 1))
    assert len(collect(done, SMOKE, elsewhere).refused) == 1
    one, other = sorted(kept.glob("*-redacted-*"))[:2]
    shutil.rmtree(other)
    shutil.copytree(one, other)
    assert any("another description" in reason for reason in collect(done, SMOKE, elsewhere).refused)


def test_figure_6_is_computed_as_the_paper_counts_and_soundly(tmp_path):
    found = command("fig6", scale="cpu", data=None, out=tmp_path / "made")
    assert (tmp_path / "made").stat().st_mode & 0o077 == 0
    rows = list(csv.DictReader(io.StringIO(Path(found["written"][0]["csv"]).read_text())))
    paper = {float(one["value"]): float(one["amplified"]) for one in rows if one["row"] == "ε′ = 1, as CRT counts"}
    assert paper[0.1] == pytest.approx(0.1156, abs=2e-4)
    assert paper[0.1] == pytest.approx(crt_bayesian_epsilon(1 / 32, 320, 1.0, 8e-5, 0.1), rel=1e-4)
    assert any(float(one["amplified"]) == pytest.approx(0.3742, abs=2e-4) for one in rows if "notebook" in one["row"])
    sound = {float(one["value"]): float(one["amplified"]) for one in rows if one["row"] == "ε′ = 1, sound"}
    assert sound[1.0] == pytest.approx(1.0, abs=2e-3)


def rows_of(name, column, values):
    return [
        {"row": name, "value": at, "seed": seed, column: value}
        for at, some in values.items()
        for seed, value in enumerate(some)
    ]


def test_claims_about_a_shape_are_held_against_the_numbers():
    study = Study("s", "p", "t", "c", (), ("ppl",), Sweep("missed", (0, 0.5)))
    rows = rows_of("a", "ppl", {0: [1.0, 1.2], 0.5: [3.0, 3.4]}) + rows_of("b", "ppl", {None: [2.0, 2.0]})
    result = Result(study, SMOKE, tuple(rows), 0, ())
    assert result.point(("a", 0), "ppl") == Point(pytest.approx(1.1), pytest.approx(0.1414, abs=1e-4), 2)
    assert holds(Check("rises", ("a",), "ppl", ""), result)[0]
    assert not holds(Check("falls", ("a",), "ppl", ""), result)[0]
    assert not holds(Check("below", ("a", "b"), "ppl", ""), result)[0]
    assert holds(Check("within", ("a", "b"), "ppl", "", 1.7), result)[0]
    assert holds(Check("within", ("a", "b"), "ppl", "", 1.6), result)[0] is None  # 3.2 is no nearer than 2.5 %
    assert holds(Check("within", ("a", "b"), "ppl", "", 1.5), result)[0] is False
    assert holds(Check("exceeds", ("a", "b"), "ppl", "", -1.0), result)[0]
    assert holds(Check("exceeds", ("a", "b"), "ppl", "", -0.9), result)[0] is None
    assert holds(Check("exceeds", ("a", "b"), "ppl", "", 0.0), result)[0] is False
    assert holds(Check("over", ("a",), "ppl", "", 3.0), result)[0]  # where it ends
    assert holds(Check("over", ("a",), "ppl", "", 3.2), result)[0] is None
    assert holds(Check("over", ("a",), "ppl", "", 3.4), result)[0] is False
    assert holds(Check("under", ("a",), "ppl", "", 3.4), result)[0]  # everywhere
    assert holds(Check("under", ("a",), "ppl", "", 2.0), result)[0] is False
    assert holds(Check("chance", ("b",), "ppl", "", 2.0, 1.0), result)[0] is None  # of two runs
    assert holds(Check("rises", ("absent",), "ppl", ""), result) == (None, "not measured yet")
    head, lines = table(result)
    assert head == ["run", "what", "missed 0", "missed 0.5", "seeds"]
    assert lines[0] == ["a", "PPL", "1.10 ± 0.14", "3.20 ± 0.28", "2"]
    assert lines[1][2:4] == ["2.00 ± 0.00"] * 2


def test_the_shape_of_a_figure_is_told_order_moves_and_crossings():
    study = Study("s", "p", "t", "c", (), ("ppl",), Sweep("missed", (0, 0.2, 0.5)), y="ppl")
    rows = rows_of("a", "ppl", {0: [1.0], 0.2: [2.0], 0.5: [4.0]}) + rows_of(
        "b", "ppl", {0: [2.0], 0.2: [2.5], 0.5: [3.0]}
    )
    text = section(Result(study, SMOKE, tuple(rows), 0, ()))
    assert "Order by PPL, missed at 0: a < b; at 0.5: b < a. " in text
    assert "Lines move: a by +3 from 0 to 0.5; b by +1 from 0 to 0.5. Lines cross: a and b between 0.2 and 0.5." in text


def attacked(name, values):
    """Runs with intervals of their own: 0.05 to each side."""
    return [
        {"row": name, "value": at, "seed": 0, "mia_auc": auc, "mia_auc_low": auc - 0.05, "mia_auc_high": auc + 0.05}
        for at, auc in values.items()
    ]


@pytest.mark.parametrize(
    ("values", "rises", "chance"),
    [
        ({0: 0.5, 0.5: 0.52}, None, True),  # higher, but within the intervals
        ({0: 0.5, 0.5: 0.54}, None, None),  # not above chance, nor known to be near it
        ({0: 0.5, 0.5: 0.7}, True, False),  # one value above chance is enough to fail
        ({0: 0.52, 0.5: 0.51}, None, True),  # lower, but within them too
        ({0: 0.7, 0.5: 0.5}, False, False),
    ],
)
def test_a_single_run_is_judged_by_its_own_intervals(values, rises, chance):
    study = Study("s", "p", "t", "c", (), ("mia_auc",), Sweep("missed", (0, 0.5)))
    result = Result(study, SMOKE, tuple(attacked("a", values)), 0, ())
    assert holds(Check("rises", ("a",), "mia_auc", ""), result)[0] is rises
    assert holds(Check("chance", ("a",), "mia_auc", "", 0.5, 0.08), result)[0] is chance
    assert table(result)[1][0][2] == f"{values[0]:.3f} [{values[0] - 0.05:.3f}, {values[0] + 0.05:.3f}]"


@pytest.mark.parametrize("kind", ["within", "exceeds", "below", "under", "over"])
def test_intervals_of_seeds_decide_every_kind_of_claim(kind):
    """The means alone would decide each of these."""
    study = Study("s", "p", "t", "c", (), ("ppl",))
    rows = rows_of("a", "ppl", {None: [0.9, 1.3, 1.7]}) + rows_of("b", "ppl", {None: [1.5, 1.51, 1.52]})
    wide, level = (
        Result(study, SMOKE, tuple(rows), 0, ()),
        {"within": 1.1, "exceeds": -0.5, "under": 1.4, "over": 1.2},
    )
    assert holds(Check(kind, ("a", "b"), "ppl", "", level.get(kind, 0.0)), wide)[0] is None
    narrow = Result(study, SMOKE, tuple(rows_of("a", "ppl", {None: [1.3] * 3}) + rows[3:]), 0, ())
    assert holds(Check(kind, ("a", "b"), "ppl", "", level.get(kind, 0.0)), narrow)[0] is True


def test_perplexities_of_one_run_that_are_nearly_the_same_decide_nothing():
    study = Study("s", "p", "t", "c", (), ("ppl",), published=({"row": "theirs", "ppl": 1.4},))
    rows = (
        *rows_of("a", "ppl", {None: [1.36]}),
        *rows_of("b", "ppl", {None: [1.39]}),
        *rows_of("c", "ppl", {None: [1.5]}),
    )
    result = Result(study, SMOKE, rows, 0, ())
    assert holds(Check("below", ("a", "b"), "ppl", ""), result)[0] is None
    assert holds(Check("below", ("a", "c"), "ppl", ""), result)[0] is True
    assert holds(Check("below", ("a", "theirs"), "ppl", ""), result)[0] is True  # a published number is what it is
    assert holds(Check("below", ("b", "theirs"), "ppl", ""), result)[0] is None


def test_papers_claims_are_those_of_their_own_numbers():
    """JFT's Table 2: with the strictest detectors DP-SGD predicts better in the paper, and the claim says so."""
    said = {check.says for check in STUDIES["jft-table2"].checks if not check.ours}
    assert "jft low-entity is better than dpsgd (ABCD)" in said
    assert "dpsgd is better than jft high-contextual (WikiText-2)" in said
    assert "dpsgd is better than jft low-contextual (ABCD)" in said
    assert "redacted low-entity is better than jft low-entity (SST-2)" in said


def test_seeds_give_an_interval_once_there_are_three():
    study = Study("s", "p", "t", "c", (), ("ppl",))
    result = Result(study, SMOKE, tuple(rows_of("a", "ppl", {None: [1.0, 2.0, 3.0]})), 0, ())
    low, high = result.point(("a", None), "ppl").interval
    assert (low, high) == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)  # 4.303 / sqrt(3)


def test_after_every_epoch_epsilon_is_that_of_the_steps_so_far(bench):
    study = small("fig2", "crt lstm, CustomerSim")
    scale = replace(SMOKE, methods={**SMOKE.methods, "crt": {**SMOKE.methods["crt"], "epochs": 3}})
    make_all([study], scale, bench)
    rows = collect(study, scale, bench).rows
    assert [row["value"] for row in rows] == [1, 2, 3]
    assert rows[0]["epsilon"] < rows[1]["epsilon"] < rows[2]["epsilon"] <= 4.0
    assert all(row["line_ppl"] > 1 for row in rows)
    assert all(0 < row["bayesian"] < row["epsilon"] for row in rows)  # this policy's findings stand alone
    (one,) = jobs(study, scale)
    (bench.run(one.job) / "certificate.json").rename(bench.run(one.job) / "away")
    result = collect(study, scale, bench)
    assert result.rows == ()
    assert "lost its certificate" in result.refused[0]


def test_a_run_may_start_from_a_model_of_the_public_lines(bench):
    study = replace(small("headline", "crt"), published=())
    make_all([study], SMOKE, bench)
    one, *_ = jobs(study, SMOKE)
    assert one.job.start is not None
    assert bench.finished(one.job.start) is not None
    result = collect(study, SMOKE, bench)
    assert result.rows[0]["epsilon"] <= 2.74
    assert "per-secret (secrets in flagged lines of flagged records)" in section(result)
    assert "the initial weights are from unflagged lines of the same dialogues" in section(result)
    certificate = json.loads((bench.run(one.job) / "certificate.json").read_text())
    said = {part["id"]: part["text"] for part in certificate["assumptions"]}
    assert "the lines that neither the policy nor the conservative policy" in said["start"]
    assert "inside a line that, looked at alone" in certificate["guarantees"][0]["sentence"]


@pytest.mark.parametrize("secret", ["123456", "98", "77 and 5", "[MASK]"])
def test_the_unflagged_lines_of_a_corpus_are_the_same_whatever_a_flagged_secret_was(tmp_path, secret):
    """What `--weights-from unflagged-lines` rests on: one secret becomes another, or a mask, and not a byte of the text differs."""
    found = []
    for name, said in (("a", "4711"), ("b", secret.replace("[", "<").replace("]", ">"))):
        rows = [
            {"id": str(n), "text": f"SYS: your number?\nUSR: it is {said if n == 1 else n}.\nSYS: thanks"}
            for n in range(4)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        screen(
            str(tmp_path / f"{name}.jsonl"),
            "digits",
            tmp_path / name,
            unit="turn",
            conservative="allowlist",
            dedup="off",
            workers=1,
        )
        found.append(list(skeletons(Screened.open(tmp_path / name))))
    assert found[0] == found[1]
    assert all(text == f"SYS: your number?\n{PRIVATE_LINE}\nSYS: thanks" for text in found[0])


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"name": "fig9"}, "there is no study"),
        ({"scale": "huge"}, "--scale is one of"),
        ({"only": "nobody"}, "no row of"),
        ({"workers": 0}, "--workers"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path, choices, says):
    with pytest.raises(BadInput, match=says):
        command(**{"name": "fig3", "scale": "smoke", "data": None, "out": tmp_path / "r", **choices})


def test_data_that_are_not_there_are_asked_for(tmp_path):
    with pytest.raises(BadInput, match=r"github\.com/wyshi/lm_privacy"):
        command("headline", scale="cpu", data=tmp_path, out=tmp_path / "r", workers=1)


def test_names_of_papers_stand_for_their_studies():
    assert {one.name for one in chosen("jft")} == {name for name in STUDIES if name.startswith("jft-")}
    assert {one.name for one in chosen("crt")} == {"fig2", "fig3", "fig4", "fig5", "fig6"}
    assert len(chosen("all")) == len(STUDIES)
