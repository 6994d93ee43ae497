"""The ledger loses nothing, admits nothing and counts everything."""

import contextlib
import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.accounting import (
    Composed,
    FixedSizeGaussian,
    Gaussian,
    LedgerWriter,
    Noiseless,
    PoissonGaussian,
    Selection,
    SelectiveGaussian,
    ShuffledGaussian,
    curve,
    read_ledger,
)
from confide.accounting.events import flatten, from_plain, short, to_plain
from confide.accounting.ledger import GENESIS, head_at
from confide.errors import BadInput, ConfideError, Contradiction, Refused

STEP = PoissonGaussian(0.1, 1.0)
SETTING = {"method": "crt"}
noises = st.floats(0.01, 100, allow_nan=False)
counts = st.integers(1, 1000)
simple = st.one_of(
    st.builds(PoissonGaussian, st.floats(1e-6, 1), noises, counts),
    st.builds(FixedSizeGaussian, st.floats(1e-6, 1), noises, counts),
    st.builds(ShuffledGaussian, noises, counts),
    st.builds(Gaussian, noises, counts),
    st.builds(SelectiveGaussian, noises, counts, st.integers(0, 2), noises, st.floats(0.01, 1), counts),
    st.builds(Noiseless, counts),
)
events = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(Composed, st.lists(inner, min_size=1, max_size=3).map(tuple), st.integers(1, 5)),
        st.builds(Selection, st.lists(inner, min_size=1, max_size=3).map(tuple), st.integers(1, 5)),
    ),
    max_leaves=6,
)


@given(events)
def test_events_survive_a_round_trip_through_json(event):
    assert from_plain(json.loads(json.dumps(to_plain(event)))) == event


@given(events)
def test_flattening_keeps_every_step(event):
    def total(e):
        if isinstance(e, Composed):
            return e.count * sum(map(total, e.events))
        if isinstance(e, Selection):
            return e.runs * sum(map(total, e.events))
        return e.count

    assert sum(step.count for step in flatten([event])) == total(event)


def write(path, count=5):
    with LedgerWriter.create(path, SETTING, [("train", PoissonGaussian(0.1, 1.0, count))]) as writer:
        for _ in range(count):
            writer.append(STEP)
        return writer.length, writer.head


def test_length_and_head_are_those_of_the_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    length, head = write(path)
    ledger = read_ledger(path)
    assert (ledger.length, ledger.head) == (length, head)
    assert length == 6
    assert ledger.setting == SETTING
    assert [event for _, event in ledger.spent] == [STEP] * 5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_change_to_the_file_is_detected(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    length, head = write(path)
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw) - 1))
    flip = data.draw(st.integers(1, 255))
    path.write_bytes(raw[:at] + bytes([raw[at] ^ flip]) + raw[at + 1 :])
    try:
        changed = read_ledger(path)
    except (Contradiction, BadInput):
        return
    assert (changed.length, changed.head) != (length, head)


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: lines[:2] + lines[3:],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: lines[1:],
    ],
    ids=["removed", "swapped", "doubled", "beheaded"],
)
def test_removed_moved_and_doubled_lines_break_the_chain(tmp_path, edit):
    path = tmp_path / "ledger.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(edit(lines)))
    with pytest.raises(Contradiction, match="line"):
        read_ledger(path)


def test_a_cut_off_end_shows_in_length_and_head(tmp_path):
    path = tmp_path / "ledger.jsonl"
    length, head = write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    ledger = read_ledger(path)
    assert ledger.length == length - 1
    assert ledger.head != head


def test_a_torn_line_is_dropped_by_the_next_writer_and_refused_by_readers(tmp_path):
    path = tmp_path / "ledger.jsonl"
    length, head = write(path)
    with open(path, "ab") as file:
        file.write(b'{"event":{"count":1,"ki')
    with pytest.raises(Contradiction, match="cut off"):
        read_ledger(path)
    with LedgerWriter.resume(path) as writer:
        assert (writer.length, writer.head) == (length, head)
        writer.append(STEP)
    assert read_ledger(path).length == length + 1


def test_the_head_after_some_lines_is_what_the_writer_had_then(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, SETTING, []) as writer:
        heads = [writer.head]
        for _ in range(4):
            writer.append(STEP)
            heads.append(writer.head)
    with open(path, "ab") as file:
        file.write(b'{"torn')  # not acknowledged, so not a line
    assert [head_at(path, length) for length in range(1, 6)] == heads
    with pytest.raises(Contradiction, match="5 lines where 6"):
        head_at(path, 6)
    with pytest.raises(BadInput, match="at least one line"):
        head_at(path, 0)


def test_a_ledger_broken_anywhere_has_no_heads(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    with pytest.raises(Contradiction, match="line 4"):
        head_at(path, 2)


def test_an_existing_ledger_is_never_overwritten(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path)
    before = path.read_bytes()
    with pytest.raises(BadInput, match="exists"):
        LedgerWriter.create(path, SETTING, [])
    assert path.read_bytes() == before


def test_a_second_writer_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, SETTING, []), pytest.raises(BadInput, match="another process"):
        LedgerWriter.resume(path)
    LedgerWriter.resume(path).close()


def test_a_ledger_that_was_refused_is_not_locked(tmp_path):
    path = tmp_path / "ledger.jsonl"
    write(path)
    whole = path.read_bytes()
    with open(path, "r+b") as file:  # the same file, which keeps its lock whatever it holds
        file.write(b"[")
    with pytest.raises(ConfideError):
        LedgerWriter.resume(path)
    with open(path, "r+b") as file:
        file.write(whole)
    LedgerWriter.resume(path).close()


def test_the_file_is_private_to_its_owner(tmp_path):
    path = tmp_path / "ledger.jsonl"
    old = os.umask(0)
    try:
        write(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600


def _append_forever(path, acknowledged):
    with LedgerWriter.resume(path) as writer:
        while True:
            writer.append(STEP)
            os.write(acknowledged, b".")


def test_every_acknowledged_step_survives_kill_nine(tmp_path):
    path = tmp_path / "ledger.jsonl"
    LedgerWriter.create(path, SETTING, []).close()
    reader, sender = os.pipe()
    acknowledged = 0
    for wanted in (3, 17, 40):
        process = multiprocessing.get_context("fork").Process(target=_append_forever, args=(path, sender))
        process.start()
        start = acknowledged
        while acknowledged < start + wanted:
            acknowledged += len(os.read(reader, 100))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        os.set_blocking(reader, False)
        with contextlib.suppress(BlockingIOError):
            acknowledged += len(os.read(reader, 10_000))
        os.set_blocking(reader, True)
        with LedgerWriter.resume(path) as writer:
            assert writer.length - 1 >= acknowledged
    os.close(reader)
    os.close(sender)


def charged(tmp_path, planned, *spent):
    path = tmp_path / "ledger.jsonl"
    path.unlink(missing_ok=True)
    with LedgerWriter.create(path, SETTING, [("train", planned)]) as writer:
        for event in spent:
            writer.append(event)
    return read_ledger(path).charged()


def test_stopping_early_is_charged_as_planned(tmp_path):
    planned = PoissonGaussian(0.1, 1.0, 100)
    assert charged(tmp_path, planned) == (planned,)
    assert charged(tmp_path, planned, *[PoissonGaussian(0.1, 1.0, 10)] * 3) == (planned,)


def test_phases_are_charged_one_by_one_in_the_order_of_the_plan(tmp_path):
    path, light = tmp_path / "ledger.jsonl", Gaussian(4.0)
    plan = [("b", STEP), ("a", light), ("b", STEP)]
    with LedgerWriter.create(path, SETTING, plan) as writer:
        writer.append(light, "a")
        writer.append(PoissonGaussian(0.1, 1.0, 2), "b")
    ledger = read_ledger(path)
    assert ledger.phases == ("b", "a")
    assert ledger.charged() == (PoissonGaussian(0.1, 1.0, 2), light)
    assert [ledger.charged(phase) for phase in ("a", "b", "c")] == [(light,), (PoissonGaussian(0.1, 1.0, 2),), ()]
    with LedgerWriter.resume(path) as writer:
        writer.append(STEP, "c")
    with pytest.raises(Refused, match="phase 'c' took 1 steps of a kind of which 0 were planned"):
        read_ledger(path).charged()


@pytest.mark.parametrize(
    "spent", [PoissonGaussian(0.1, 1.0, 101), PoissonGaussian(0.1, 2.0), PoissonGaussian(0.2, 1.0), Noiseless()]
)
def test_a_ledger_beyond_its_plan_is_refused(tmp_path, spent):
    """ε(T) at a T that depends on the data is an odometer, not a bound: see the simulation below."""
    with pytest.raises(Refused, match="exceed its plan"):
        charged(tmp_path, PoissonGaussian(0.1, 1.0, 100), spent)


def test_an_adaptive_number_of_steps_breaks_the_bound_of_the_steps_taken():
    """Stop as soon as the loss exceeds the ε of the steps so far: the privacy loss then passes it far too often."""
    rng = np.random.default_rng(0)
    noise, delta, longest, runs = 20.0, 1e-3, 400, 20_000
    checkpoints = [25, 50, 100, 200, 400]
    epsilons = [curve([Gaussian(noise, steps)]).epsilon(delta) for steps in checkpoints]
    mu = 2 / noise
    losses = np.cumsum(rng.normal(mu**2 / 2, mu, size=(runs, longest)), axis=1)[:, [c - 1 for c in checkpoints]]
    caught = np.maximum(0, -np.expm1(np.array(epsilons) - losses))
    first = np.argmax(losses > np.array(epsilons), axis=1)
    gained = np.where((losses > np.array(epsilons)).any(axis=1), caught[np.arange(runs), first], 0).mean()
    assert gained > 1.5 * delta


def test_tuning_runs_are_charged_one_by_one(tmp_path):
    runs = Selection((PoissonGaussian(0.1, 1.0, 50),), runs=7)
    assert charged(tmp_path, runs) == (PoissonGaussian(0.1, 1.0, 350),)


def test_a_selection_over_random_runs_keeps_their_number_secret(tmp_path):
    plan = Selection((PoissonGaussian(0.1, 1.0, 50),), mean_runs=5.0)
    assert charged(tmp_path, plan, plan) == charged(tmp_path, plan) == (plan,)
    ledger = read_ledger(tmp_path / "ledger.jsonl")
    assert (ledger.charged("train"), ledger.charged("other")) == ((plan,), ())
    with pytest.raises(Refused, match="secret"):
        charged(tmp_path, plan, *[PoissonGaussian(0.1, 1.0, 50)] * 3)
    with pytest.raises(Refused, match="secret"):
        charged(tmp_path, plan, plan, plan)


def test_every_state_release_of_selective_training_counts():
    event = SelectiveGaussian(1.0, segments=3, states=2, state_noise_multiplier=1.0, count=10)
    assert event.releases == 10 * 3 * (1 + 2)
    with pytest.raises(BadInput, match="noised"):
        SelectiveGaussian(1.0, segments=1, states=1)
    with pytest.raises(BadInput, match="states"):
        SelectiveGaussian(1.0, segments=1, states=-1)


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        {"kind": "magic"},
        {"kind": "poisson-gaussian", "sampling_rate": 0.1},
        {"kind": "poisson-gaussian", "sampling_rate": 0.1, "noise_multiplier": 1.0, "colour": "red"},
        {"kind": "poisson-gaussian", "sampling_rate": "0.1", "noise_multiplier": 1.0},
        {"kind": "poisson-gaussian", "sampling_rate": 1.5, "noise_multiplier": 1.0},
        {"kind": "poisson-gaussian", "sampling_rate": 0.1, "noise_multiplier": 0.0},
        {"kind": "poisson-gaussian", "sampling_rate": 0.1, "noise_multiplier": 1.0, "count": 0},
        {"kind": "poisson-gaussian", "sampling_rate": 0.1, "noise_multiplier": 1.0, "count": True},
        {"kind": "composed", "events": []},
        {"kind": "poisson-gaussian", "sampling_rate": 0.1, "noise_multiplier": 10**400},
        {"kind": "composed", "events": "all"},
        {"kind": "composed", "events": [{"kind": "noiseless"}], "count": 0},
        {"kind": "selection", "events": [{"kind": "noiseless"}], "runs": 0},
        {"kind": "selection", "events": [{"kind": "noiseless"}], "mean_runs": 0},
        {"kind": "selection", "events": [{"kind": "noiseless"}], "mean_runs": 1.1e6},
        {"kind": "noiseless", "count": 0},
        {"kind": "noiseless", "count": 10**8 + 1},
        {"kind": "gaussian", "noise_multiplier": 0.0099},
        {"kind": "gaussian", "noise_multiplier": 1.1e6},
        {"kind": "gaussian", "noise_multiplier": True},
        {"kind": "gaussian", "noise_multiplier": 1.0, "count": 0},
        {"kind": "shuffled-gaussian", "noise_multiplier": 1.0, "epochs": 0},
        {"kind": "shuffled-gaussian", "noise_multiplier": 0.0},
        {"kind": "selective-gaussian", "noise_multiplier": 1.0, "segments": 0, "states": 0},
        {"kind": "selective-gaussian", "noise_multiplier": 0.0, "segments": 1, "states": 0},
        {
            "kind": "selective-gaussian",
            "noise_multiplier": 1.0,
            "segments": 1,
            "states": 1,
            "state_noise_multiplier": 0.0,
        },
        {"kind": "selective-gaussian", "noise_multiplier": 1.0, "segments": 1, "states": 0, "participation": 1.1},
        {"kind": "selective-gaussian", "noise_multiplier": 1.0, "segments": 1, "states": 0, "count": 0},
    ],
)
def test_events_that_make_no_sense_are_refused(plain):
    with pytest.raises(BadInput):
        from_plain(plain)


def test_rates_down_to_one_in_a_billion_are_taken():
    assert PoissonGaussian(1e-9, 1.0, 1).sampling_rate == 1e-9
    with pytest.raises(BadInput, match="sampling rate"):
        PoissonGaussian(9e-10, 1.0, 1)


MODEL = {"model": {"model.safetensors": "0" * 64}}
PAID = {"phase": "train", "event": to_plain(STEP)}


@pytest.mark.parametrize(
    "bodies",
    [[{**PAID, "model": {}}], [{**PAID, **MODEL}], [{"model": {}}], [MODEL, PAID], [{**PAID, "note": 1}]],
    ids=["hidden", "hidden beside a model", "named no more", "behind a model", "more fields"],
)
def test_no_step_hides_from_the_accountant(tmp_path, bodies):
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, SETTING, [("train", STEP)]) as writer:
        for body in bodies:
            writer._write(body)
    with pytest.raises(BadInput, match="an entry that cannot be read"):
        read_ledger(path)


def test_an_unreadable_ledger_is_explained(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        read_ledger(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(BadInput, match="empty"):
        read_ledger(tmp_path / "empty.jsonl")


def test_a_ledger_whose_first_line_did_not_fit_on_the_disk_is_not_in_the_way(tmp_path, monkeypatch):
    path, entry = tmp_path / "ledger.jsonl", [("train", STEP)]

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ConfideError, match="No space left on device"):
            LedgerWriter.create(path, SETTING, entry)
    LedgerWriter.create(path, SETTING, entry).close()
    assert read_ledger(path).planned == tuple(entry)


def test_a_ledger_in_no_folder_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"cannot create the ledger .*: No such file or directory"):
        LedgerWriter.create(tmp_path / "nowhere" / "ledger.jsonl", SETTING, [])
    with pytest.raises(BadInput, match=r"cannot open the ledger .*: No such file or directory"):
        LedgerWriter.resume(tmp_path / "ledger.jsonl")


def test_a_ledger_of_another_version_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    for version in (2, "1", None):
        with open(path, "wb") as file:
            writer = LedgerWriter(path, os.dup(file.fileno()))
        writer._write({"confide_ledger": version, "setting": SETTING, "planned": []})
        writer.close()
        with pytest.raises(BadInput, match=f"has version {version!r}, this confide reads version 1"):
            read_ledger(path)


def test_the_files_of_a_model_are_named_once_and_the_last_names_count(tmp_path):
    path, first, second = tmp_path / "ledger.jsonl", {"a": "0" * 64}, {"a": "1" * 64, "b": "2" * 64}
    with LedgerWriter.create(path, SETTING, [("train", STEP)]) as writer:
        writer.append(STEP)
        writer.name_model(first)
        writer.name_model(first)
    with LedgerWriter.resume(path) as writer:
        writer.name_model(first)
        assert (writer.length, writer.model) == (3, first)
        writer.name_model(second)
    ledger = read_ledger(path)
    assert (ledger.length, ledger.model, ledger.spent) == (4, second, (("train", STEP),))


@pytest.mark.parametrize("model", [[], "all", {"a": "0" * 63}, {"a": "F" * 64}, {"a": 7}, {"a": "0" * 64, "b": ""}])
def test_a_model_is_named_by_digests_and_nothing_else(tmp_path, model):
    path = tmp_path / "ledger.jsonl"
    with LedgerWriter.create(path, SETTING, [("train", STEP)]) as writer:
        writer._write({"model": model})
    with pytest.raises(BadInput, match="an entry that cannot be read: digests of a model's files"):
        read_ledger(path)


def test_an_entry_that_does_not_reach_the_disk_leaves_the_ledger_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    write(path)
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    with LedgerWriter.resume(path) as writer:
        length, head = writer.length, writer.head
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(ConfideError, match="No space left on device; no step was taken"):
                writer.append(STEP)
        assert path.read_bytes() == before
        assert (writer.length, writer.head) == (length, head)
        writer.append(STEP)
    assert read_ledger(path).length == length + 1


def test_an_entry_that_is_written_piece_by_piece_is_whole(tmp_path, monkeypatch):
    real, path = os.write, tmp_path / "ledger.jsonl"
    monkeypatch.setattr(os, "write", lambda descriptor, rest: real(descriptor, bytes(rest[:7])))
    length, head = write(path)
    assert (read_ledger(path).length, read_ledger(path).head) == (length, head)


def test_a_resumed_ledger_has_lost_its_torn_line(tmp_path):
    path = tmp_path / "ledger.jsonl"
    length, head = write(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"torn')
    LedgerWriter.resume(path).close()
    assert path.read_bytes() == whole
    assert head_at(path, length) == head != GENESIS


def test_a_closed_writer_closes_nothing_else(tmp_path):
    path = tmp_path / "ledger.jsonl"
    writer = LedgerWriter.create(path, SETTING, [])
    writer.close()
    with open(path) as other:  # takes the number that the writer had
        writer.close()
        assert other.read()


def test_only_events_are_flattened():
    with pytest.raises(BadInput, match="'step' is not an event"):
        flatten(["step"])
    with pytest.raises(BadInput, match="does not compose with other events"):
        flatten([Selection((STEP,), mean_runs=2.0)])
    for inner in ((), [STEP], ("step",)):
        with pytest.raises(BadInput, match="a tuple of at least one event"):
            Composed(inner)


def test_equal_steps_are_added_up_and_composed_ones_multiplied():
    once, light = Composed((STEP, Gaussian(2.0, 3)), 4), ShuffledGaussian(2.0, 5)
    found = flatten([once, STEP, light, Selection((once, light), runs=2)])
    assert found == [PoissonGaussian(0.1, 1.0, 13), Gaussian(2.0, 36), ShuffledGaussian(2.0, 15)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonGaussian(1.0, 0.01, 10**8),
        lambda: Gaussian(1e6),
        lambda: SelectiveGaussian(1.0, segments=1, states=0, participation=1e-9),
        lambda: Selection((STEP,), mean_runs=1e6),
        lambda: ShuffledGaussian(1, 10**8),
    ],
)
def test_events_at_their_borders_are_taken(make):
    assert from_plain(to_plain(make())) == make()


@pytest.mark.parametrize(
    ("value", "text"),
    [("a" * 38, repr("a" * 38)), ("a" * 39, "'" + "a" * 36 + "..."), (10**29, str(10**29)), (10**30, "a number of more than thirty digits"),
     (-(10**30), "a number of more than thirty digits")],
)  # fmt: skip
def test_a_value_in_a_message_is_short(value, text):
    assert short(value) == text


def test_a_number_that_is_refused_is_named_with_its_range():
    with pytest.raises(BadInput, match=r"noise multiplier must be a number in \[0.01, 1e\+06\], got 0"):
        Gaussian(0)
    with pytest.raises(BadInput, match=r"mean_runs must be a number in \(0, 1e\+06\], got 0"):
        Selection((STEP,), mean_runs=0)
    with pytest.raises(BadInput, match=r"steps must be a whole number from 1 to 100000000, got 1.5"):
        PoissonGaussian(0.1, 1.0, 1.5)
