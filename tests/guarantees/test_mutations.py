"""Plausible mistakes, applied to a copy of the source: each must be caught by the test that is named beside it."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "confide"

# name: (file, what it says, what the mistake would say, test that must fail)
MISTAKES = {
    "add/remove in place of substitution": (
        "accounting/pairs.py",
        "pair = substitution_pair(k, step.sampling_rate, step.noise_multiplier)\n            return pair, pair, step.count",
        "return *null_pair(k, step.sampling_rate, step.noise_multiplier), step.count",
        "accounting/test_golden.py::test_adjacencies_and_samplers",
    ),
    "sensitivity C in place of 2C": (
        "accounting/pairs.py",
        'reach = 2 * k if adjacency == "substitution" else k',
        "reach = k",
        "accounting/test_curves.py::test_a_gaussian_ledger_matches_the_closed_form",
    ),
    "k times epsilon for a group": (
        "accounting/guarantees.py",
        "epsilon = accounts.curve(k, accounts.phase).epsilon(delta)\n    records =",
        "epsilon = k * accounts.curve(1, accounts.phase).epsilon(delta)\n    records =",
        "accounting/test_certificate.py::test_a_group_is_never_k_epsilon_at_the_same_delta",
    ),
    "gamma at the wrong delta": (
        "accounting/bayesian.py",
        "return (delta - delta2) / (gamma - delta2) if gamma > delta2 else 1.0",
        "return delta",
        "accounting/test_golden.py::test_bayesian_for_the_slot",
    ),
    "delta2 forgotten": (
        "accounting/guarantees.py",
        "total = delta + delta2",
        "total = delta",
        "accounting/test_certificate.py::test_what_both_policies_miss_is_in_delta",
    ),
    "public misses overlooked": (
        "accounting/certificate.py",
        "if public_misses(evidence) and setting.all_flagged:",
        'if public_misses(evidence) and setting.conservative == "everything":',
        "accounting/test_certificate.py::test_evidence_that_contradicts_the_setting_is_refused",
    ),
    "the Bloom filter for free": (
        "accounting/guarantees.py",
        "failure=self.setting.bloom_cost(k)",
        "failure=0.0",
        "accounting/test_certificate.py::test_a_keyed_bloom_filter_costs_its_false_positives",
    ),
    "steps beyond the plan": (
        "accounting/ledger.py",
        "if step.count > counts.get(_one(step), 0):",
        "if False:",
        "accounting/test_ledger.py::test_a_ledger_beyond_its_plan_is_refused",
    ),
    "amplification for shared batches": (
        "accounting/certificate.py",
        "if isinstance(step, SelectiveGaussian) != selective:",
        "if isinstance(step, SelectiveGaussian) and not selective:",
        "accounting/test_certificate.py::test_shared_batches_never_claim_amplification",
    ),
    "one direction only": (
        "accounting/curves.py",
        "return (self.forward,) if self.forward is self.backward else (self.forward, self.backward)",
        "return (self.backward,)",
        "accounting/test_golden.py::test_tight_group_curves",
    ),
    "tail mass dropped": (
        "accounting/curves.py",
        "return Law(first + int(kept[0]), masses, infinity, h)",
        "return Law(first + int(kept[0]), masses, 0.0, h)",
        "accounting/test_curves.py::test_the_discretised_law_dominates_the_pair_everywhere",
    ),
    "losses rounded down": (
        "accounting/curves.py",
        "up = np.expm1(cells * h - losses) / math.expm1(-h)",
        "up = np.zeros_like(losses)",
        "accounting/test_curves.py::test_the_discretised_law_dominates_the_pair_everywhere",
    ),
    "sampling rate shared out over the group": (
        "accounting/pairs.py",
        "weights = stats.binom.pmf(counts, k, rate)",
        "weights = stats.binom.pmf(counts, k, rate / k)",
        "accounting/test_golden.py::test_tight_group_curves",
    ),
    "fixed-size batches counted as Poisson": (
        "accounting/certificate.py",
        'if step.sampler != "none" and step.sampler != setting.sampler:',
        "if False:",
        "accounting/test_certificate.py::test_each_unsound_setting_is_refused_with_its_own_reason",
    ),
    "tuning runs counted once": (
        "accounting/events.py",
        "add(inner, times * event.runs)",
        "add(inner, times)",
        "accounting/test_golden.py::test_tuning_runs_compose",
    ),
    "early stopping charged for the steps taken": (
        "accounting/ledger.py",
        "return tuple(planned)\n",
        "return tuple(flatten(event for name, event in self.spent if name == phase))\n",
        "accounting/test_certificate.py::test_early_stopping_is_charged_to_the_end",
    ),
    "hidden states not counted": (
        "accounting/pairs.py",
        "square += step.states * (reach / step.state_noise_multiplier) ** 2",
        "square += 0",
        "accounting/test_golden.py::test_selective_privacy",
    ),
    "Clopper-Pearson with its lower limit": (
        "accounting/missrate.py",
        "stats.beta.ppf(1 - beta, missed + 1, labels - missed)",
        "stats.beta.ppf(1 - beta, max(missed, 1e-9), labels - missed + 1)",
        "accounting/test_missrate.py::test_redraw_bound_covers",
    ),
    "pooled counts in place of the e-process": (
        "accounting/missrate.py",
        "lambdas = np.concatenate([np.geomspace(1e-3, 1, 40), np.linspace(0.025, 1, 40)]) / cap",
        "return redraw_bound(int(times @ missed), int(times @ secrets), beta)",
        "accounting/test_missrate.py::test_review_bound_covers_for_whoever_stops_when_happy",
    ),
    "an error that each new review may spend again": (
        "accounting/missrate.py",
        "return 0.9 if begun == 1 else 0.1 / (begun * (begun - 1))",
        "return 0.9",
        "accounting/test_missrate.py::test_starting_over_until_the_number_pleases_gains_nothing",
    ),
    "a found secret that masking would still show": (
        "review/policies.py",
        "return self._masks(masked) != [*before,",
        "return False and self._masks(masked) != [*before,",
        "guarantees/test_review.py::test_every_found_secret_that_masking_would_show_counts_as_missed",
    ),
    "a part of a finding that nobody may mark": (
        "review/policies.py",
        ' and not self._shows(shown, Secret(start, end, ""))',
        "",
        "guarantees/test_review.py::test_parts_of_findings_are_told_apart",
    ),
    "a class whose word list changed after the review": (
        "review/policies.py",
        'if then != now or "" in now:',
        "if False:",
        "review/test_store.py::test_a_word_list_that_is_not_the_screenings_makes_no_evidence",
    ),
    "a second reviewer who takes misses back": (
        "review/counting.py",
        "for one in max(by.values(), key=len)]",
        "for one in min(by.values(), key=len)]",
        "guarantees/test_review.py::test_another_reviewer_can_only_raise_the_bound",
    ),
    "a class that counts for all secrets": (
        "review/counting.py",
        "if members and not secret.in_class:",
        "if False:",
        "review/test_store.py::test_where_a_class_is_flagged_by_construction_its_secrets_count_for_themselves",
    ),
    "evidence that was not there before training": (
        "accounting/certificate.py",
        "if setting.evidence and setting.evidence != evidence_hash(evidence):",
        "if False:",
        "accounting/test_certificate.py::test_the_ledger_names_the_evidence_and_no_other_is_taken",
    ),
    "detected secrets free in the paper's order": (
        "accounting/setting.py",
        'return 0 if self.dedup == "off" or self.order == "redact-dedup" else 1',
        "return 0",
        "accounting/test_certificate.py::test_detected_secrets_are_free_only_with_mask_consistency_and_redact_before_dedup",
    ),
    "phase 1 forgotten in JFT": (
        "accounting/bayesian.py",
        "return (1 - gamma) * phase2.delta(epsilon) + gamma * leak - delta",
        "return phase2.delta(epsilon) - delta",
        "accounting/test_bayesian.py::test_jft_never_falls_below_phase_two",
    ),
    "audit without delta": (
        "accounting/audit.py",
        "2 * canaries * delta * slack",
        "0 * slack",
        "accounting/test_golden.py::test_audits",
    ),
    "chain without its predecessor": (
        "accounting/ledger.py",
        "hashlib.sha256((previous + canonical(body)).encode())",
        "hashlib.sha256(canonical(body).encode())",
        "accounting/test_ledger.py::test_removed_moved_and_doubled_lines_break_the_chain",
    ),
    "verification that winks at one percent": (
        "accounting/verification.py",
        "TOLERANCE = 1e-6",
        "TOLERANCE = 2e-2",
        "accounting/test_verification.py::test_a_number_that_is_one_percent_too_small_is_named",
    ),
    "a masked record in the public part": (
        "screening/treatment.py",
        "private = masked or bool(found)",
        "private = bool(found)",
        "guarantees/test_stability.py::test_a_record_with_a_mask_or_a_hit_is_private",
    ),
    "a finding that does not make private": (
        "screening/treatment.py",
        "private = masked or bool(found) or",
        "private = masked or",
        "guarantees/test_stability.py::test_a_record_with_a_mask_or_a_hit_is_private",
    ),
    "runs of masks that are counted": (
        "screening/treatment.py",
        'if last < 0 or text[last:start].strip(" \\t"):',
        "if True:",
        "guarantees/test_devil_in_the_details.py::test_one_mask_for_duplicates_and_secrets_alike",
    ),
    "literal masks that look like secrets": (
        "records.py",
        """return _LITERAL.sub(r"‹\\1›", text.replace(MARK, "\\ufffd")) if "<" in text or MARK in text else text""",
        "return text",
        "screening/test_screen.py::test_literal_masks_are_escaped",
    ),
    "dedup that compares before redaction": (
        "screening/batches.py",
        "self._digests(treated.text, treated.units, treated.turns, row.label) if self._compared[private] else None",
        "self._digests(record.text, [(0, len(record.text))], (), None) if self._compared[private] else None",
        "guarantees/test_devil_in_the_details.py::test_one_mask_for_duplicates_and_secrets_alike",
    ),
    "dedup that looks at the text alone": (
        "screening/batches.py",
        "if self.options.dedup_unit is None and (turns or label is not None):",
        "if False:",
        "training/test_neighbours.py::test_a_label_does_not_show_which_copy_was_blanked",
    ),
    "a seeded stream for what fills masks": (
        "training/encoding.py",
        "import secrets as entropy",
        "import random\n\nentropy = random.Random(7)",
        "training/test_corpus.py::test_what_fills_a_mask_comes_from_no_seed",
    ),
    "holding out by the part that a record is in": (
        "training/holdout.py",
        "_place(group) < share * 2**64 for group in groups",
        "part == 'public' and _place(group) < share * 2**64 for group in groups",
        "training/test_neighbours.py::test_a_record_that_is_held_out_stays_out_whatever_part_it_is_in",
    ),
    "a run that is resumed as another": (
        "training/beginning.py",
        "if (ledger.planned, ledger.setting) != (plan.planned, plan.setting.to_plain()):",
        "if False:",
        "training/test_neighbours.py::test_a_run_is_not_resumed_as_another",
    ),
    "dropout's coins that private steps move": (
        "training/loop.py",
        "seed_dropout(self.prepared.device, options.seed, slot.phase, slot.step)",
        "torch.manual_seed(0) if slot.step == 0 else None",
        "training/test_replay.py::test_a_run_is_a_function_of_released_gradients_and_public_records",
    ),
    "duplicates that lose their slot": (
        "screening/pipeline.py",
        "return table.filter(pa.array(keep)) if dropped else table",
        'return table.filter(pc.not_equal(table["text"], MASK))',
        "screening/test_screen.py::test_duplicates_keep_their_slots",
    ),
    "several units that count as one": (
        "screening/manifest.py",
        '"units_per_record": "several" if options.dedup_unit else "one",',
        '"units_per_record": "one",',
        "guarantees/test_stability.py::test_the_pipeline_does_what_the_oracle_does",
    ),
    "whole-document policies that count as local": (
        "screening/manifest.py",
        'max(1, counts["largest group"]) if options.reads_groups else 1',
        "1",
        "screening/test_screen.py::test_whole_documents_go_one_way_with_group_context",
    ),
    "a finding cut at a turn's border": (
        "screening/treatment.py",
        'if policy.consistency == "none":',
        "if True:",
        "guarantees/test_devil_in_the_details.py::test_a_finding_never_reaches_across_the_turns_of_a_chat",
    ),
    "a Bloom filter whose candidates are not verified": (
        "screening/dedup.py",
        "        if digest in seen:\n            yield slot\n",
        "        if digest in candidates:\n            yield slot\n",
        "screening/test_dedup.py::test_a_verified_filter_of_64_bits_finds_what_exact_dedup_finds",
    ),
    "tied weights without their cross term": (
        "dp/tally.py",
        "self.square[group] += 2 * use.rule.inner(use, other, frozenset(names)).cpu()",
        "pass",
        "dp/test_rules.py::test_norms_and_clipped_sums_are_those_of_single_examples[tied-dtype0-gram]",
    ),
    "norms without their rounding term": (
        "dp/clipping.py",
        "return (square.abs() * OF_SQUARE + spread * OF_SPREAD) * 2.0**-24",
        "return spread * 0",
        "dp/test_rounding.py::test_the_bound_on_a_squared_norm_is_never_below_the_truth[(128, 96, 384)]",
    ),
    "a later batch that wipes out the sum": (
        "dp/engine.py",
        "        if self._sums is not None:\n            if any",
        "        if False:\n            if any",
        "dp/test_engine.py::test_batches_of_any_size_make_the_same_sum[fused head-1]",
    ),
    "a running sum in single precision": (
        "dp/engine.py",
        "            if opened:\n                sums.widen()",
        "            if False:\n                sums.widen()",
        "dp/test_rounding.py::test_a_record_that_lifts_the_sum_over_a_power_of_two_does_not_change_how_later_batches_are_rounded[8]",
    ),
    "squares of tied weights in single precision": (
        "dp/rules/base.py",
        "dtype = torch.float64 if _PRECISE else None",
        "dtype = None",
        "dp/test_rounding.py::test_uses_of_a_tied_table_that_cancel_are_clipped_all_the_same[4096-8-1]",
    ),
    "norms in bfloat16": (
        "dp/rules/base.py",
        "return torch.autocast(value.device.type, enabled=False)",
        "return torch.autocast(value.device.type, enabled=torch.is_autocast_enabled(value.device.type))",
        "dp/test_models.py::test_bfloat16_autocast_is_close_and_still_clipped",
    ),
    "a gradient that is not finite times zero": (
        "dp/engine.py",
        "        if bool(nothing.any()):\n",
        "        if False:\n",
        "dp/test_engine.py::test_a_record_whose_gradient_is_not_finite_contributes_zero[nan-flat]",
    ),
    "padding rows that count": (
        "dp/clipping.py",
        "finite = bound.isfinite().all(0) & real",
        "finite = bound.isfinite().all(0)",
        "dp/test_engine.py::test_padding_rows_count_for_nothing",
    ),
    "each layer clipped to the whole norm": (
        "dp/clipping.py",
        "self.norm / math.sqrt(len(bound)), bound.sqrt()",
        "self.norm, bound.sqrt()",
        "dp/test_engine.py::test_no_record_contributes_more_than_the_clipping_norm[0.1-per-layer]",
    ),
    "positions that share one gradient": (
        "dp/capture.py",
        "output = output.expand(self.examples, *output.shape[1:])",
        "pass",
        "dp/test_rules.py::test_norms_and_clipped_sums_are_those_of_single_examples[positions for all-dtype0-gram]",
    ),
    "half of the noise over two processes": (
        "dp/engine.py",
        "self._noise.add_(shares[rank], std)",
        "self._noise.add_(shares[rank], std) if rank == 0 else None",
        "dp/test_distributed.py::test_noise_is_added_once_over_both_processes_and_every_parameter_gets_it",
    ),
    "sums that are not rounded to the noise's lattice": (
        "dp/noise.py",
        "copy_(block).mul_(1 / step).round_()",
        "copy_(block).mul_(1 / step)",
        "dp/test_noise.py::test_a_release_is_the_rounded_sum_plus_rounded_noise_exactly[torch]",
    ),
    "sums that cancel in single precision": (
        "dp/engine.py",
        "double = (cancelling | self._exact)",
        "double = (cancelling & self._exact)",
        "dp/test_hostile.py::test_large_terms_that_cancel_and_swallow_small_ones",
    ),
    "underflow overlooked": (
        "dp/rules/gram.py",
        "if rows.dtype == torch.float32 and bool(tiny.any()):",
        "if False:",
        "dp/test_hostile.py::test_squares_that_underflow_are_taken_in_double_precision",
    ),
    "records that mix in training only": (
        "dp/engine.py",
        "            self._record(batch, loss, seen, only=place)\n",
        "            pass\n",
        "dp/test_hostile.py::test_layers_that_mix_records_are_refused_however_little_or_seldom",
    ),
    "a step without records that is left out": (
        "dp/plan.py",
        "                if not step.released:\n",
        "                if not step.released and len(step.indices):\n",
        "dp/test_plan.py::test_an_empty_step_cannot_be_left_out",
    ),
    "padding on the left accepted": (
        "dp/losses.py",
        '    _check_padding(inputs.get("attention_mask"))\n',
        "",
        "dp/test_hostile.py::test_padding_on_the_left_is_refused",
    ),
    "a configuration that contradicts the certificate": (
        "accounting/verification.py",
        "wrong = list(disagreements(config, certificate, ledger))",
        "wrong: list[str] = []",
        "accounting/test_verification.py::test_the_configuration_of_a_run_must_not_contradict_its_certificate",
    ),
    "a run goes on with a ledger that is shorter than its certificate": (
        "training/beginning.py",
        "        _refuse_shorter(certified, ledger)",
        "        pass",
        "training/test_provenance.py::test_a_ledger_that_was_cut_is_not_gone_on_with_though_no_checkpoint_tells",
    ),
    "a certificate for whatever weights lie beside it": (
        "accounting/verification.py",
        '        _refuse_other_model(folder / "model", ledger)',
        "        pass",
        "training/test_provenance.py::test_a_certificate_says_nothing_of_other_weights",
    ),
}

RUN = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT)
os.dup2(log, 1)
os.dup2(log, 2)
os.chdir({root!r})
os.environ.update(PYTHONPATH={copy!r}, HOME={copy!r}, CONFIDE_SHRINK="no")
sys.path.insert(0, {copy!r})
import confide, pytest
assert confide.__file__.startswith({copy!r}), confide.__file__
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", {test!r}]))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
def test_the_named_test_catches_the_mistake(name, tmp_path, forks):
    file, right, wrong, test = MISTAKES[name]
    # With what is compiled already, but for the file with the mistake
    shutil.copytree(PACKAGE, tmp_path / "confide", ignore=shutil.ignore_patterns(f"{Path(file).stem}.*.pyc", "*.so"))
    path = tmp_path / "confide" / file
    source = path.read_text()
    assert source.count(right) == 1, "the mistake no longer fits the source: update it"
    path.write_text(source.replace(right, wrong))
    log = tmp_path / "log.txt"
    code = RUN.format(log=str(log), root=str(ROOT), copy=str(tmp_path), test=str(ROOT / "tests" / test))
    child = forks.Process(target=exec, args=(code, {}))
    child.start()
    child.join(300)
    if child.is_alive():
        child.kill()
    said = log.read_text(errors="replace")
    assert child.exitcode == 1, f"not caught:\n{said[-3000:]}"
    assert "1 failed" in said, said[-3000:]
