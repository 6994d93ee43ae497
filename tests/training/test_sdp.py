"""S-DP: public tokens never see private ones, private terms are noised, and every noised thing is paid for."""

import json
from copy import deepcopy
from itertools import chain, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch.nn import functional

from confide.accounting import LedgerWriter, SelectiveGaussian, read_ledger, verify
from confide.dp import Plan
from confide.dp.noise import GaussianNoise, Lane
from confide.errors import BadInput, Refused
from confide.models import LstmConfig, LstmForCausalLM, load_tokenizer
from confide.policies import Finding
from confide.screening import screen
from confide.terminal import show_plan
from confide.training import loop, processes, selective
from confide.training.corpus import TokenFile
from confide.training.encoding import Encoder, Example, Tokens
from confide.training.loop import train
from confide.training.options import Options
from confide.training.phases import Phase, Slot
from confide.training.planning import plan
from confide.training.prepared import Stream
from confide.training.sdp import phases, private_targets, public_pieces
from confide.training.selective import Selective, noised, segments

LSTM = "lstm:hidden_size=16,embedding_size=16"
WORDS = 20  # of the tiny vocabulary
INCOMPARABLE = "must not be compared with a confidentiality epsilon"


def record(ids, private):
    """A framed record: `private` is a text of marks, x for a private token."""
    target = np.ones(len(ids), bool)
    target[0] = False
    return Tokens(np.array(ids, np.int32), target, np.array([mark == "x" for mark in private]))


def readable(tokens):
    return [(one.ids.tolist(), one.ids[one.target].tolist()) for one in tokens]


patterns = st.lists(st.booleans(), min_size=1, max_size=14)


def drawn(pattern, seed=0):
    """A record of random tokens with this pattern behind its first token."""
    ids = np.random.default_rng(seed).integers(WORDS, size=1 + len(pattern))
    return record(ids, ["-", *("x" if private else "-" for private in pattern)])


# -- the sound variant ------------------------------------------------------------------------------------------------


def test_public_pieces_stand_alone_behind_the_first_token():
    one = record([9, 1, 2, 3, 4, 5, 6], "---xx--")
    assert readable(public_pieces([one])) == [([9, 1, 2], [1, 2]), ([9, 5, 6], [6])]


def test_a_piece_without_a_target_is_left_out():
    assert readable(public_pieces([record([9, 1, 2], "-x-")])) == []  # 2 comes behind a private token
    assert readable(public_pieces([record([9, 1, 2, 3], "-xxx")])) == []
    assert readable(public_pieces([record([9, 1, 2, 3], "----")])) == [([9, 1, 2, 3], [1, 2, 3])]


def test_private_targets_are_the_private_tokens_and_the_one_behind_each():
    one = record([9, 1, 2, 3, 4, 5, 6], "--x-xx-")
    assert readable(private_targets([one])) == [([9, 1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6])]
    assert readable(private_targets([record([9, 1, 2], "---")])) == [([9, 1, 2], [])]


@given(patterns, st.integers(0, 99))
def test_the_two_passes_share_out_the_loss_terms(pattern, seed):
    one = drawn(pattern, seed)
    public = sum(int(piece.target.sum()) for piece in public_pieces([one]))
    private = next(private_targets([one])).target
    behind = np.concatenate([[False], one.private[:-1]])
    assert np.array_equal(private, one.target & (one.private | behind))
    assert public + private.sum() == one.target.sum()


@given(patterns, st.integers(0, 99))
def test_private_tokens_never_reach_the_public_pass(pattern, seed):
    one, other = drawn(pattern, seed), drawn(pattern, seed + 1000)
    other = one._replace(ids=np.where(one.private, other.ids, one.ids))
    pieces, others = list(public_pieces([one])), list(public_pieces([other]))
    assert len(pieces) == len(others)
    for piece, its in zip(pieces, others, strict=True):
        assert [part.tobytes() for part in piece[:3]] == [part.tobytes() for part in its[:3]]


@pytest.fixture(scope="module")
def encoder():
    texts = ["my code is, bye"] * 9
    return Encoder(load_tokenizer(None, "lstm", public_texts=lambda: iter(texts), vocabulary_size=280)[0], 64)


@given(secret=st.text("0123456789 abc,", min_size=4, max_size=4))
def test_private_characters_never_reach_the_public_pass(encoder, secret):
    found = []
    for text in ("my code is 0000, bye", f"my code is {secret}, bye"):
        example = Example(text, "segments", (), [Finding(11, 15, "DIGITS", "digits")])
        found.append(list(public_pieces(encoder.encode([example]))))
    one, other = ([piece.ids.tobytes() for piece in pieces] for pieces in found)
    assert one == other


def test_the_sound_variant_draws_its_private_batches_apart_from_the_public_ones():
    options = Options(LSTM, method="sdp", noise=1.0, delta=1e-3)
    (phase,) = phases(options)
    assert phase.public is not None
    assert phase.private is not None
    assert not phase.whole_segments


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A screened corpus of twelve dialogues in which digits are private."""
    folder = tmp_path_factory.mktemp("sdp")
    private = [f"my code is {1000 + 37 * i} and my age {20 + i} ok" for i in range(6)]
    public = [f"good day to you my friend {'a' * (i + 1)}" for i in range(6)]
    (folder / "c.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in [*private, *public]))
    return screen(str(folder / "c.jsonl"), "digits", folder / "screened", workers=1, conservative="digits")


def planned(corpus, **choices):
    choices = {
        "model": LSTM, "method": "sdp", "noise": 1.0, "delta": 1e-3, "epochs": 2, "vocabulary_size": 270, "batch_size": 4,
        "private_batch_size": 4, "max_length": 48, "optimizer": "sgd", "learning_rate": 0.1, "validation_share": 0.0,
    } | choices  # fmt: skip
    return plan(corpus, **choices)


def test_a_sound_run_is_certified_as_selective_and_nothing_else(corpus, tmp_path):
    run = train(planned(corpus), tmp_path / "run")
    (guarantee,) = run.certificate["guarantees"]
    assert guarantee["name"] == "selective"
    assert guarantee["k"] == 1
    assert INCOMPARABLE in guarantee["sentence"]
    assert run.certificate["sampler"] == "poisson"
    verify(tmp_path / "run")


def test_the_sound_variant_trains_any_causal_model(corpus, tmp_path):
    model = "gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2"
    run = train(planned(corpus, model=model, epochs=1), tmp_path / "run")
    assert run.certificate["guarantees"][0]["name"] == "selective"


# -- the paper's variant: segments and states -------------------------------------------------------------------------


def test_a_private_segment_reaches_from_the_token_before_to_the_term_behind():
    one = record([9, 1, 2, 3, 4, 5, 6], "---xx--")
    assert segments(one, 8) == [slice(0, 2), slice(2, 5), slice(5, 6)]


def test_a_record_that_begins_with_private_text_has_an_empty_first_segment():
    assert segments(record([9, 1, 2, 3], "-x--"), 8) == [slice(0, 0), slice(0, 2), slice(2, 3)]


def test_a_record_that_ends_with_private_text_has_no_segment_behind_it():
    assert segments(record([9, 1, 2, 3], "---x"), 8) == [slice(0, 2), slice(2, 3)]
    assert segments(record([9, 1, 2], "---"), 8) == [slice(0, 2)]


def test_a_single_public_token_does_not_part_private_segments():
    assert segments(record([9, 1, 2, 3, 4], "-x-x-"), 8) == [slice(0, 0), slice(0, 4)]


@given(patterns, st.integers(1, 4))
def test_segments_keep_public_and_private_apart_and_are_capped(pattern, most):
    one = drawn(pattern)
    cut = segments(one, most)
    assert len(cut) <= 2 * most + 1
    assert cut[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(cut))
    for at, piece in enumerate(cut):
        inputs, goals = one.private[piece], one.private[piece.start + 1 : piece.stop + 1]
        assert (inputs | goals).all() if at % 2 else not (inputs | goals).any()
    if len(cut) < 2 * most + 1:
        assert cut[-1].stop == len(one.ids) - 1


def test_states_are_clipped_each_by_itself(silent):
    states = torch.tensor([[[3.0, 4.0]], [[0.3, 0.4]], [[0.0, 0.0]], [[torch.nan, 1.0]], [[torch.inf, 1.0]]])
    found = noised(states, 1.0, 1.0, GaussianNoise())
    assert found[0].norm() <= 1.0
    assert torch.allclose(found[0], torch.tensor([[0.6, 0.8]]), atol=1e-5)
    assert torch.equal(found[1], states[1])
    assert not found[2:].any()


def test_states_are_noised_by_the_multiple_of_their_clipping_norm():
    found = noised(torch.zeros(50, 2, 100), 0.5, 3.0, GaussianNoise())
    assert 1.45 < float(found.std()) < 1.55
    assert len(found.flatten().unique()) > 9000


# -- the paper's variant: steps ---------------------------------------------------------------------------------------


@pytest.fixture
def silent(monkeypatch):
    """Noise that is zero."""
    monkeypatch.setattr("confide.dp.noise.COMPILED", None)
    monkeypatch.setattr(Lane, "draw", lambda self, out, std: out.zero_())


@pytest.fixture
def steps(tmp_path):
    """A function from records and options to the paper's steps on them, in batches of `batch`."""

    def make(records, batch=1, epochs=1, ledger=None, paid=0, layers=1, **choices):
        choices = {"noise": 1.0, "delta": 1e-3, "segments": 2, "optimizer": "sgd"} | choices
        options = Options(LSTM, method="sdp", variant="paper", epochs=epochs, **choices)
        torch.manual_seed(0)
        config = LstmConfig(WORDS, 8, 8, num_hidden_layers=layers, initializer_range=0.5)
        model = LstmForCausalLM(config)
        number = len(list(tmp_path.iterdir()))
        tokens = TokenFile.write(tmp_path / f"tokens{number}", records)
        rows = np.arange(len(records))
        stream = Stream(tokens, rows, tokens.lengths, 0, torch.device("cpu"))
        event = SelectiveGaussian(options.noise, options.segments, 2, options.state_noise or options.noise, 1.0, epochs)
        own = Plan(len(records), batch / len(records), 1, options.noise, options.clip_norm)
        made = SimpleNamespace(options=options, planned=(("train", event),), private={"train": own})
        if ledger is not None:
            ledger = LedgerWriter.create(tmp_path / "ledger.jsonl", {}, made.planned)
            if paid:
                ledger.append(SelectiveGaussian(event.noise_multiplier, event.segments, 2, options.noise, 1.0, paid))
        prepared = SimpleNamespace(model=model, device=torch.device("cpu"), ledger=ledger)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        phase = Phase("train", epochs, whole_segments=True)
        return SimpleNamespace(
            model=model,
            optimizer=optimizer,
            event=event,
            options=options,
            steps=Selective(made, phase, prepared, stream, optimizer, paid),
        )

    return make


def rate(slot):
    return 0.5 if slot.kind == "public" else 0.25


def slot(step=0, epoch=0):
    return Slot(0, epoch, "private", step)


def by_hand(model, ids, state):
    """Logits and state of one piece, by plain torch."""
    hidden, state = model.model.lstm(model.model.embed_tokens(torch.tensor([ids])), state)
    return model.lm_head(hidden)[0], state


@pytest.mark.parametrize("clip", [0.05, 100.0])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_step_is_the_papers_computed_by_hand(steps, silent, monkeypatch, clip, layers):
    """SGD on x0, clipped gradient of the terms 2, 3, 4 given the detached state, clipped state, SGD on x4."""
    ids = [9, 1, 2, 3, 4, 5]
    made = steps([record(ids, "--xx--")], clip_norm=clip, state_clip=0.1, layers=layers)
    oracle, taken = deepcopy(made.model), []
    step = made.optimizer.step
    monkeypatch.setattr(
        made.optimizer, "step", lambda: (taken.append([p.grad.clone() for p in made.model.parameters()]), step())
    )
    losses = made.steps.step(slot(), rate)

    parameters, expected, state, public = list(oracle.parameters()), [], None, []
    for inputs, goals, private in (([9], [1], False), ([1, 2, 3], [2, 3, 4], True), ([4], [5], False)):
        logits, state = by_hand(oracle, inputs, state)
        loss = functional.cross_entropy(logits, torch.tensor(goals))
        gradient = torch.autograd.grad(loss, parameters)
        state = tuple(part.detach() for part in state)
        if private:
            norm = torch.cat([g.flatten() for g in gradient]).norm()
            gradient = [g * min(1.0, clip / float(norm)) for g in gradient]
            state = tuple(part * min(1.0, 0.1 / float(part.norm())) for part in state)
        else:
            public.append(float(loss.detach()))
        expected.append(gradient)
        with torch.no_grad():
            for parameter, g in zip(parameters, gradient, strict=True):
                parameter -= (0.25 if private else 0.5) * g

    assert len(taken) == 3
    for found, want in zip(taken, expected, strict=True):
        for a, b in zip(found, want, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-6)
    assert losses == pytest.approx(public, rel=1e-4)
    for a, b in zip(made.model.parameters(), parameters, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-5)


def test_records_of_a_batch_do_not_mix_and_microbatches_change_nothing(steps, silent):
    records = [record([9, 1, 2, 3, 4, 5], "--xx--"), record([9, 6, 7], "-x-"), record([9, 8, 7, 6], "----")]
    alike = [steps(records, batch=3, microbatch=size) for size in (1, 2, 8)]
    for made in alike:
        made.steps.step(slot(), rate)
    for made in alike[1:]:
        for a, b in zip(alike[0].model.parameters(), made.model.parameters(), strict=True):
            assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_private_tokens_act_through_noised_gradients_and_states_alone(steps, silent, monkeypatch, seed):
    """Without a private step and with states that are noise, other private tokens give the same model, bit for bit."""
    one = drawn([False, True, True, False, False, True, False, False, False], seed)
    other = one._replace(ids=np.where(one.private, (one.ids + 1 + seed) % WORDS, one.ids))
    monkeypatch.setattr(selective, "noised", lambda states, *rest: torch.full_like(states, 0.3))
    found = []
    for text in (one, other):
        made = steps([text])
        losses = made.steps.step(slot(), lambda at: 0.5 if at.kind == "public" else 0.0)
        found.append([losses, [p.detach().clone() for p in made.model.parameters()]])
    assert len(found[0][0]) == 3
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_segments_beyond_the_limit_never_reach_the_model(steps):
    text = record([9, 1, 2, 3, 4, 5, 6, 7, 8, 10], "--x---x---")
    made, seen = steps([text], segments=1), set()
    made.model.model.embed_tokens.register_forward_hook(lambda _, args, __: seen.update(args[0].flatten().tolist()))
    made.steps.step(slot(), rate)
    assert seen == {9, 1, 2, 3, 4}  # 5 is read together with the private 6


def test_every_noised_gradient_and_state_is_paid_for(steps, monkeypatch):
    """Ledger size N·R·(1+n_h) (guarantees §5): so many noised tensors a record touches, and no more."""
    epochs, text = 2, record([9, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12], "--x---x---x-")
    made = steps([text], epochs=epochs, ledger=True, state_noise=3.0, state_clip=0.5, clip_norm=0.1)
    calls, add = [], GaussianNoise.add_

    def counted(self, sums, std):
        paid = sum(event.releases for _, event in read_ledger(made.steps._ledger.path).spent)
        calls.append((sums.dim(), std))
        assert len(calls) <= paid
        add(self, sums, std)

    monkeypatch.setattr(GaussianNoise, "add_", counted)
    for epoch in range(epochs):
        made.steps.step(slot(epoch, epoch), rate)
    states = [std for dim, std in calls if dim == 3]
    assert len(states) == epochs * 2 * 2  # h and c after each of two private segments
    assert states == pytest.approx([1.5] * len(states), rel=1e-3)
    assert len(calls) == made.event.releases == epochs * 2 * (1 + 2)
    assert [std for dim, std in calls if dim == 1] == pytest.approx([0.1] * 4, rel=1e-3)


def test_every_record_takes_part_once_in_an_epoch(steps, monkeypatch):
    made = steps([record([9, n, 1, 2], "-x--") for n in range(7)], batch=3, epochs=2)
    drawn = [[made.steps._batch_of(slot(3 * epoch + n, epoch)).tolist() for n in range(3)] for epoch in range(2)]
    for epoch in drawn:
        assert [len(batch) for batch in epoch] == [3, 3, 1]
        assert sorted(chain(*epoch)) == list(range(7))
    assert drawn[0] != drawn[1]


def test_the_sum_is_divided_by_a_public_constant(steps, silent, monkeypatch):
    """A record alone in the last batch counts as much as any other."""
    found = []
    for records, batch in (([record([9, 1, 2, 3], "-x--")], 1), ([record([9, 1, 2, 3], "-x--")] * 4, 4)):
        made, taken = steps(records, batch=batch, clip_norm=0.01), []
        if batch == 4:
            monkeypatch.setattr(made.steps, "_batch_of", lambda slot: np.arange(1))
        step = made.optimizer.step
        made.optimizer.step = lambda made=made, taken=taken, step=step: (
            taken.append(torch.cat([p.grad.flatten() for p in made.model.parameters()]).norm()),
            step(),
        )
        made.steps.step(slot(), rate)
        found.append(float(taken[0]))
    assert found == pytest.approx([0.01, 0.0025], rel=1e-3)


def test_the_ledger_holds_an_epoch_before_its_first_step(steps):
    made = steps([record([9, 1, 2, 3], "-x--")] * 2, epochs=2, ledger=True)
    path = made.steps._ledger.path
    assert read_ledger(path).spent == ()
    made.steps._public = lambda *_: pytest.fail("a step before its payment") if not read_ledger(path).spent else 0.0
    for step, epoch in ((0, 0), (1, 0), (2, 1), (3, 1)):
        made.steps.step(slot(step, epoch), rate)
        assert sum(event.count for _, event in read_ledger(path).spent) == epoch + 1 == made.steps.epochs


def test_an_epoch_that_the_ledger_holds_is_not_gone_on_with(steps):
    made = steps([record([9, 1, 2, 3], "-x--")] * 2, epochs=2, ledger=True, paid=1)
    before = [p.detach().clone() for p in made.model.parameters()]
    assert made.steps.step(slot(1, 0), rate) == []
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
    assert made.steps.epochs == 1
    assert made.steps.step(slot(2, 1), rate)
    assert not all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
    assert sum(event.count for _, event in read_ledger(made.steps._ledger.path).spent) == 2


def test_a_ledger_of_another_plan_is_refused(steps, tmp_path):
    made = steps([record([9, 1, 2, 3], "-x--")], ledger=True)
    made.steps.gradients.detach()
    other = SimpleNamespace(
        options=made.options,
        planned=(("train", SelectiveGaussian(5.0, 2, 2, 5.0)),),
        private={"train": Plan(1, 1.0, 1, 5.0)},
    )
    prepared = SimpleNamespace(model=made.model, device=torch.device("cpu"), ledger=made.steps._ledger)
    with pytest.raises(Refused, match="plans something else"):
        Selective(other, Phase("train", 1), prepared, made.steps._stream, made.optimizer)


@pytest.mark.parametrize("choices", [{"reduction": "sum"}, {"clipping": "automatic"}, {"public_clip": 0.1}])
def test_other_options_leave_the_model_finite(steps, choices):
    made = steps([record([9, 1, 2, 3, 4], "--x--"), record([9, 5, 6], "-x-")], batch=2, **choices)
    made.steps.step(slot(), rate)
    assert all(p.isfinite().all() for p in made.model.parameters())


# -- the paper's variant: runs ----------------------------------------------------------------------------------------


def test_a_run_as_in_the_paper_is_certified_with_its_true_epsilon(corpus, tmp_path):
    made = planned(corpus, variant="paper", segments=2)
    run = train(made, tmp_path / "run")
    (guarantee,) = run.certificate["guarantees"]
    assert guarantee["name"] == "selective"
    assert guarantee["k"] == 1
    assert guarantee["epsilon"] > 30  # 2 epochs of 2 gradients, 2 hidden and 2 cell states at noise 1
    assert INCOMPARABLE in guarantee["sentence"]
    assert run.certificate["sampler"] == "public"
    assert made.setting.sampler == "public"
    verify(tmp_path / "run")
    spent = read_ledger(tmp_path / "run" / "ledger.jsonl").spent
    assert sum(event.releases for _, event in spent) == 2 * 2 * (1 + 2)
    assert all(event.participation == 1.0 for _, event in spent)  # who takes part is public: nothing is amplified
    assert run.telemetry()[-1]["epsilon"] == pytest.approx(guarantee["epsilon"])


@pytest.mark.parametrize("killed_at", [0, 1, 4])
def test_a_killed_run_goes_on_with_the_next_epoch(corpus, tmp_path, monkeypatch, killed_at):
    """An epoch that was paid for and broken off is lost; the ledger never exceeds the plan."""
    made = planned(corpus, variant="paper", segments=2, epochs=3, checkpoint_every=1)
    assert made.private_steps(made.phases[0]) == 9
    step = Selective.step

    def killed(self, slot, rate):
        found = step(self, slot, rate)
        if slot.step == killed_at:
            self._ledger.close()  # as the end of a process does
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Selective, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        train(made, tmp_path / "run")
    taken = []

    def counted(self, slot, rate):
        before = [p.detach().clone() for p in self._model.parameters()]
        found = step(self, slot, rate)
        if not all(torch.equal(a, b) for a, b in zip(before, self._model.parameters(), strict=True)):
            taken.append(slot.epoch)
        return found

    monkeypatch.setattr(Selective, "step", counted)
    train(made, tmp_path / "run", resume=True)
    lost = killed_at // 3
    assert taken == [epoch for epoch in range(lost + 1, 3) for _ in range(3)]
    assert sum(event.count for _, event in read_ledger(tmp_path / "run" / "ledger.jsonl").spent) == 3
    verify(tmp_path / "run")


def test_a_target_is_met_by_more_noise(corpus):
    made = planned(corpus, variant="paper", segments=2, noise=None, epsilon=8.0)
    assert made.certificate()["guarantees"][0]["epsilon"] <= 8.0
    assert made.private["train"].noise_multiplier > 1.0


def test_the_published_epsilon_is_named_as_such_and_never_certified(corpus):
    summary = planned(corpus, variant="paper", segments=2).summary()
    published = summary["published_epsilon"]
    assert published["epsilon"] < summary["epsilon"]
    assert "not a bound" in published["accounting"]
    assert "states not counted" in published["accounting"]
    assert "published" not in json.dumps(summary["certificate"])
    console = Console(width=300, record=True)
    show_plan(console, summary)
    shown = console.export_text()
    assert "the S-DP paper would state epsilon" in shown
    assert "not a bound" in shown
    assert INCOMPARABLE in shown
    assert "published_epsilon" not in planned(corpus).summary()


def test_a_transformer_is_refused_before_anything_is_made(corpus, tmp_path):
    made = planned(corpus, variant="paper", model="gpt2-tiny:hidden_size=16,num_hidden_layers=1,num_attention_heads=2")
    with pytest.raises(BadInput, match="only an LSTM has"):
        train(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_half_precision_is_refused(steps):
    with pytest.raises(BadInput, match="single precision"):
        steps([record([9, 1, 2, 3], "-x--")], precision="bf16")


def test_several_processes_are_refused(steps, monkeypatch):
    monkeypatch.setattr(processes, "world", lambda: 2)
    with pytest.raises(Refused, match="one process"):
        steps([record([9, 1, 2, 3], "-x--")])


def test_the_loop_has_no_noise_of_its_own_for_segments(corpus, tmp_path, monkeypatch):
    """Every gradient of the paper's variant comes from its own steps: no Poisson batch is ever drawn for it."""
    monkeypatch.setattr(Plan, "run", lambda *_, **__: pytest.fail("a Poisson batch"))
    monkeypatch.setattr(loop.Work, "public_step", lambda *_: pytest.fail("a public step"))
    train(planned(corpus, variant="paper", segments=2, epochs=1), tmp_path / "run")
