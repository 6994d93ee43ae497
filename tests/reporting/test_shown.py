"""Charts and commands show what there is: nothing allowed is shaded, no label covers another, every command runs."""

import itertools
import shlex
import warnings

import numpy as np
import pytest

from confide.accounting import Setting, read_ledger
from confide.accounting.ceilings import Ceilings
from confide.accounting.guarantees import Accounts
from confide.reporting import compare, figures, flow, report
from confide.reporting.drawing import draw
from confide.reporting.gather import gather
from confide.wording import chances, odds


@pytest.fixture
def painted(monkeypatch):
    """The axes of every chart that is drawn, by its name, after drawing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = {}

    def paint(name, title, on, *, size=(5.6, 3.5), **more):
        figure = Figure(figsize=size)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot(position=(0, 0, 1, 1))
        on(axes)
        canvas.draw()
        found[name] = axes
        return draw(name, title, on, size=size, **more)

    for module in (compare, figures, flow):
        monkeypatch.setattr(module, "draw", paint)
    return found


def test_nothing_that_the_certificate_allows_is_shaded_as_impossible(make, tmp_path, painted):
    run = make(tmp_path / "run", parts=("certificate", "model"))
    figures.charts(gather(run))
    shade = painted["trade_off"].collections[0].get_paths()[0].vertices
    ledger = read_ledger(run / "ledger.jsonl")
    ceiling = Ceilings(Accounts(Setting.from_plain(ledger.setting), ledger).main)
    xs = np.geomspace(1e-4, 1, 3000)
    lower = shade[shade[:, 1] < 1]
    for x, most in zip(xs, ceiling.tpr(xs), strict=True):
        beyond = lower[lower[:, 0] >= x * (1 - 1e-12)]
        if most < 1 and len(beyond):
            first = beyond[np.argmin(beyond[:, 0])]
            assert beyond[np.isclose(beyond[:, 0], first[0]), 1].min() >= most - 1e-9
    assert len(lower) > 200  # and it is no coarse staircase


@pytest.mark.parametrize(
    "counts",
    [
        {"public": 5, "public_duplicates": 5, "private": 100000, "mask_only": 60, "private_duplicates": 30},
        {"public": 100000, "public_duplicates": 3, "private": 7, "mask_only": 3, "private_duplicates": 1},
        {"public": 5507, "private": 3022},
        {"public": 0, "private": 50},
        {"public": 9, "private": 0},
    ],
)
def test_no_label_of_the_flow_covers_another_and_all_are_inside(counts, painted):
    chart = flow.flow({"unit": "turn", **counts})
    axes = painted["flow"]
    boxes = [text.get_window_extent() for text in axes.texts]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    whole = axes.figure.bbox
    assert all(whole.y0 - 1 <= box.y0 and box.y1 <= whole.y1 + 1 and box.x1 <= whole.x1 + 1 for box in boxes)
    assert "found secrets masked, text kept" not in str(chart.rows)
    if counts["private"]:
        assert chart.rows[-1][0] != ""
        assert any(row[0] == "text kept; found secrets, if any, masked" for row in chart.rows)


def test_tables_hold_every_type_and_captions_say_how_many_are_drawn(make, tmp_path, change):
    run = make(tmp_path / "run")
    change(tmp_path / "screened" / "manifest.json", findings={f"T{n}": n + 1 for n in range(60)})
    types = {f"T{n}": {"secrets": n, "missed": 0, "bound": 0.5} for n in range(40)}
    change(tmp_path / "screened" / "review.json", types=types)
    drawn = figures.charts(gather(run))
    assert len(drawn["findings"].rows) == 60
    assert "25 of 60 types" in drawn["findings"].caption
    assert len(drawn["misses"].rows) == 40
    assert ("T0", "0", "0", "none seen", "50.0 %") in drawn["misses"].rows
    assert "25 of 40 types" in drawn["misses"].caption


def test_runs_that_promise_nothing_stand_beyond_the_end_of_the_scale(make, tmp_path, painted):
    runs = [gather(make(tmp_path / "crt")), gather(make(tmp_path / "plain", "plain", parts=("model",)))]
    compare.compare(runs, runs)
    axes = painted["plane"]
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels[-1] == "no promise"
    end = axes.spines["bottom"].get_bounds()[1]
    assert max(axes.get_xticks()[:-1]) <= end
    assert axes.lines[0].get_xdata()[0] <= end < axes.lines[1].get_xdata()[0]


def test_a_name_in_any_script_makes_no_noise_on_the_terminal():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chart = draw("x", "x", lambda axes: axes.set_title("患者名簿"), caption="", alt="", columns=(), rows=())
    assert "患者名簿" in chart.svg


def test_attacks_line_up_whichever_was_the_best(make, tmp_path, change, words):
    one, other = make(tmp_path / "one"), make(tmp_path / "other")
    change(other / "attacks.json", membership=lambda part: {**part, "strongest": {**part["strongest"], "name": "loss"}})
    change(other / "attacks.json", exposure={"skipped": "none planted"})
    table = compare.compare([gather(one), gather(other)], [gather(one), gather(other)])["attacks"]
    rows = {what: (chance, cells) for what, chance, cells in table}
    chance, cells = rows["membership of real records, AUC"]
    assert chance == "0.5"
    assert "best attack: loss" in cells[1].detail
    assert cells[0].detail != cells[1].detail
    assert rows["exposure of planted secrets, mean"][1][1] is None
    assert "not measured" in words(report([one, other], tmp_path / "c.html"))


def test_an_epsilon_has_a_sentence_for_everyone():
    said = odds({"epsilon": 1.999, "delta": 8e-5})
    assert (
        said == "Seeing the model makes any guess about such a secret at most 7.39 times as likely, plus 8 in 100,000."
    )
    assert [chances(value) for value in (1e-5, 1.234e-5, 0.05, 1e-9)] == [
        "1 in 100,000", "1.3 in 100,000", "5 in 100", "1 in 1,000,000,000"]  # fmt: skip


@pytest.mark.usefixtures("undrawn")
def test_commands_can_be_typed_as_they_stand(make, tmp_path, words):
    from typer.main import get_command

    from confide.cli import app

    home = tmp_path / "it's a folder"
    run = make(home / "my run", "plain", parts=("model",), validation_share=0.15, special_tokens=["SYS:", "A B"])
    stopped = make(home / "stopped", "crt", parts=())
    text = words(report(run)) + words(report(stopped))
    assert "confide verify" not in text
    commands = [
        f"confide attack {shlex.quote(str(run))}", f"confide review {shlex.quote(str(home / 'screened'))}",
        f"confide train -o {shlex.quote(str(stopped))} --resume",
        f"confide train {shlex.quote(str(home / 'screened'))} --method plain -o {shlex.quote(str(home / 'plain'))} --epochs 2 "
        "--task causal --model lstm --special-tokens 'SYS:,A B' --validate-on unflagged --validation-share 0.15",
    ]  # fmt: skip
    for command in commands:
        assert command in text
        _, name, *words_ = shlex.split(command)
        known = get_command(app).commands[name]
        known.make_context(name, words_)  # raises for what it does not know
