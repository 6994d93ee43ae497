"""Where the papers' statements had to change: each entry of docs/errata.md as a counterexample that runs."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant

from confide.accounting import Gaussian, PoissonGaussian, SelectiveGaussian, curve, labels_needed, slot_epsilon
from confide.accounting.curves import gaussian_delta
from confide.accounting.papers import crt_bayesian_epsilon, jft_heuristic_epsilon, rdp_epsilon, sdp_epsilon
from confide.errors import Refused

DELTA = 8e-5
MASK = "<MASK>"


def dedup(records):
    """CRT's dedup on records made of units: second and later copies of a unit become a mask."""
    seen = set()
    out = []
    for record in records:
        units = []
        for unit in record:
            units.append(MASK if unit in seen else unit)
            seen.add(unit)
        out.append(tuple(units))
    return out


def redact(records, secrets):
    return [tuple(" ".join(MASK if w in secrets else w for w in unit.split()) for unit in record) for record in records]


def mask(records, index, secret):
    """Neighbour: one occurrence of the secret becomes a mask."""
    changed = [list(r) for r in records]
    changed[index] = [" ".join(MASK if w == secret else w for w in unit.split()) for unit in changed[index]]
    return [tuple(r) for r in changed]


def distance(left, right):
    """How many records differ, as multisets."""
    return sum((Counter(left) - Counter(right)).values())


def test_masking_a_secret_is_a_substitution_not_a_removal():
    """E1. CRT accounts for add/remove. A mechanism that masks can be told apart better than that allows."""
    step = PoissonGaussian(0.03125, 1.0, 320)
    claimed = curve([step], "add-remove").epsilon(DELTA)
    assert curve([step]).delta(claimed) > 80 * DELTA
    # and the gap is real: opposite gradients reach it (one step, by integration)
    x = np.linspace(-12, 12, 200_001)
    normal = np.exp(-0.5 * x**2)
    plus, minus = np.exp(-0.5 * (x - 1) ** 2), np.exp(-0.5 * (x + 1) ** 2)
    secret, masked = 0.5 * normal + 0.5 * plus, 0.5 * normal + 0.5 * minus
    reached = np.maximum(0, secret - math.e * masked).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    assert reached > 2 * curve([PoissonGaussian(0.5, 1.0, 1)], "add-remove").delta(1.0)


def test_the_definition_needs_both_directions():
    """E2. Definition 1 is one-sided; the two directions of a null record differ."""
    forward, backward = curve([PoissonGaussian(0.03125, 1.0, 320)], "zero-out").directions
    assert forward.get_epsilon_for_delta(DELTA) > 1.1 * backward.get_epsilon_for_delta(DELTA)


def test_renyi_accounting_under_replace_one_understates():
    """E3. dp_accounting's RDP keeps the sensitivity at 1 under REPLACE_ONE: 1.91 where the truth is 3.86."""
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.GaussianDpEvent(2.0))
    truth = curve([Gaussian(2.0)]).epsilon(DELTA)
    assert truth == pytest.approx(3.86, abs=0.01)
    assert accountant.get_epsilon(DELTA) < 0.55 * truth
    with pytest.raises(Refused, match="sensitivity"):
        rdp_epsilon(PoissonGaussian(1.0, 2.0, 1), DELTA, adjacency="substitution")


def test_two_records_can_change_in_the_papers_order():
    """E4. Dedup by unit inside longer records: masking one occurrence changes two records."""
    corpus = [("call x", "t1"), ("call x", "t2")]
    assert distance(dedup(corpus), dedup(mask(corpus, 0, "x"))) == 2


def test_a_detected_secret_is_not_free_in_the_papers_order():
    """E5. Proposition 5's ε=0: π catches x, yet masking one copy by hand changes the output."""
    corpus = [("id x",), ("id x",)]
    neighbour = mask(corpus, 0, "x")
    assert distance(redact(dedup(corpus), {"x"}), redact(dedup(neighbour), {"x"})) == 1
    assert distance(dedup(redact(corpus, {"x"})), dedup(redact(neighbour, {"x"}))) == 0


def test_a_perfect_policy_does_not_make_a_group_free_in_the_papers_order():
    """E5. The same with a group of two different secrets."""
    corpus = [("id x",), ("id y",)]
    neighbour = mask(mask(corpus, 0, "x"), 1, "y")
    policy = {"x", "y"}
    assert distance(redact(dedup(corpus), policy), redact(dedup(neighbour), policy)) == 1


def test_unique_secrets_undercount_what_dedup_leaves():
    """E6. Proposition 7 counts unique secrets; one secret in two sentences changes two records after dedup."""
    corpus = [("I am x",), ("call x",)]
    neighbour = mask(mask(corpus, 0, "x"), 1, "x")
    assert distance(dedup(corpus), dedup(neighbour)) == 2


def test_groups_grow_with_misses_not_with_detections():
    """E7. Theorem 8.2 lets ε grow with γ̃ "detected"; it is the missed ones that change records."""
    corpus = [("id x",), ("id y",), ("id z",)]
    neighbour = mask(mask(mask(corpus, 0, "x"), 1, "y"), 2, "z")
    for detected in ({"x"}, {"x", "y"}):
        assert distance(redact(corpus, detected), redact(neighbour, detected)) == 3 - len(detected)


def test_k_epsilon_at_the_same_delta_is_false():
    """E8. For a Gaussian mechanism, two records at 2ε have a δ far above the claimed one."""
    mu = 1.0
    epsilon = 2.0
    delta = float(gaussian_delta(np.array([epsilon]), mu)[0])
    assert float(gaussian_delta(np.array([2 * epsilon]), 2 * mu)[0]) > 4 * delta
    step = [PoissonGaussian(0.03125, 1.0, 320)]
    assert curve(step, k=2).epsilon(DELTA) > 1.1 * 2 * curve(step).epsilon(DELTA)


def test_a_miss_rate_of_the_corpus_does_not_amplify_epsilon():
    """E9. If π misses in 10 % of contexts always and elsewhere never, the amplified ε is false in those 10 %."""
    main = curve([PoissonGaussian(0.03125, 2.0, 320)])
    amplified = slot_epsilon(main, 0.1, DELTA)
    assert main.delta(amplified) > 1000 * DELTA


def test_two_hundred_clean_labels_cannot_support_a_delta():
    """E10. "100 % recall on 200 points" bounds δ₂ by 0.015, not by 8e-5."""
    assert labels_needed(DELTA, 0.05) == 37_446


def test_the_papers_bayesian_epsilon_uses_the_wrong_adjacency():
    """E1 again, through Figure 6: 0.12 at ε′=1, γ=0.1 is 0.33 for the noise that the paper used."""
    claimed = crt_bayesian_epsilon(0.03125, 320, 1.0, DELTA, 0.1)
    sound = slot_epsilon(curve([PoissonGaussian(0.03125, 2.01, 320)]), 0.1, DELTA)
    assert claimed == pytest.approx(0.1156, abs=1e-3)
    assert sound > 2.5 * claimed


def test_selective_training_counts_no_states_and_claims_amplification():
    """E11. S-DP's published ε against one participation of one segment with its two noised states."""
    published = sdp_epsilon(1 / 10_000, 0.7, 1_000_000, DELTA)
    sound = curve([SelectiveGaussian(0.7, segments=1, states=2, state_noise_multiplier=0.7)]).epsilon(DELTA)
    assert sound > 10 * published


def test_public_updates_on_the_same_batch_reveal_participation():
    """E11. If participation is public, a step in which the record takes part has the unamplified loss."""
    amplified = curve([PoissonGaussian(0.01, 2.0, 100)]).epsilon(DELTA)
    public = curve([SelectiveGaussian(2.0, segments=1, states=0, participation=0.01, count=100)]).epsilon(DELTA)
    assert public > 4 * amplified


def test_a_missing_rate_is_not_a_sampling_rate():
    """E12. JFT's light noise: q times m̃ claims 0.03 for a missed secret whose true ε is 7."""
    claimed = jft_heuristic_epsilon(0.03125, 0.8, 320, DELTA, 0.01)
    assert curve([PoissonGaussian(0.03125, 0.8, 320)]).epsilon(DELTA) > 200 * claimed


def test_shuffling_is_not_poisson_sampling():
    """E13. A secret that takes part in every epoch: its last epoch's batch, alone, already exceeds the Poisson claim."""
    poisson = curve([PoissonGaussian(0.001, 1.0, 1000)])
    one_known_participation = curve([Gaussian(1.0)])
    assert one_known_participation.epsilon(DELTA) > 5 * poisson.epsilon(DELTA)


def test_every_erratum_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "errata.md").read_text()
    source = Path(__file__).read_text()
    for number in range(1, 14):
        assert f"## E{number} " in text
        assert f"E{number}." in source or f"E{number} " in source
