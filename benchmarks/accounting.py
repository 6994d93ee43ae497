"""Time and tightness of the accounting, side by side in one run: ours, dp_accounting, Opacus, autodp, prv_accountant.

Ratios mean something, absolute times do not. `--quick` leaves out the long runs, `--json` prints one object.
Peers that are not installed are named as missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from confide.accounting import PoissonGaussian, curve, issue, smallest_noise, verify
from confide.accounting.curves import _curve

SETTINGS = {
    "short (q=1/32, noise 1, 320 steps, delta 8e-5)": (1 / 32, 1.0, 320, 8e-5),
    "peers (q=0.01, noise 1, 1000 steps, delta 1e-5)": (0.01, 1.0, 1000, 1e-5),
    "a million steps (q=0.001, noise 1, delta 1e-5)": (0.001, 1.0, 10**6, 1e-5),
    "a million steps (q=0.0001, noise 0.6, delta 8e-5)": (1e-4, 0.6, 10**6, 8e-5),
}

Peer = Callable[[float, float, int, float], float]


def ours(adjacency: str) -> Peer:
    def run(rate: float, noise: float, steps: int, delta: float) -> float:
        _curve.cache_clear()
        return curve([PoissonGaussian(rate, noise, steps)], adjacency).epsilon(delta)

    return run


def dp_accounting_pld(relation: NeighboringRelation) -> Peer:
    def run(rate: float, noise: float, steps: int, delta: float) -> float:
        accountant = PLDAccountant(relation)
        sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
        accountant.compose(dp_event.SelfComposedDpEvent(sampled, steps))
        return float(accountant.get_epsilon(delta))

    return run


def dp_accounting_rdp(rate: float, noise: float, steps: int, delta: float) -> float:
    accountant = RdpAccountant()
    sampled = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    accountant.compose(dp_event.SelfComposedDpEvent(sampled, steps))
    return float(accountant.get_epsilon(delta))


def peers() -> tuple[dict[str, Peer], list[str]]:
    """Those that install; all of them account for add/remove only."""
    found: dict[str, Peer] = {}
    missing = []
    try:
        from opacus.accountants import PRVAccountant, RDPAccountant

        def opacus(kind: Any) -> Peer:
            def run(rate: float, noise: float, steps: int, delta: float) -> float:
                accountant = kind()
                accountant.history = [(noise, rate, steps)]
                return float(accountant.get_epsilon(delta=delta))

            return run

        found |= {"Opacus PRV": opacus(PRVAccountant), "Opacus RDP": opacus(RDPAccountant)}
    except ImportError:
        missing.append("opacus")
    try:
        from autodp import mechanism_zoo, transformer_zoo

        def autodp(rate: float, noise: float, steps: int, delta: float) -> float:
            gaussian = mechanism_zoo.GaussianMechanism(sigma=noise)
            gaussian.neighboring = "add_remove"
            sampled = transformer_zoo.AmplificationBySampling(PoissonSampling=True)(
                gaussian, rate, improved_bound_flag=True
            )
            return float(transformer_zoo.Composition()([sampled], [steps]).get_approxDP(delta))

        found["autodp RDP"] = autodp
    except ImportError:
        missing.append("autodp")
    try:
        from prv_accountant import PRVAccountant as Prv
        from prv_accountant.privacy_random_variables import PoissonSubsampledGaussianMechanism

        def prv(rate: float, noise: float, steps: int, delta: float) -> float:
            mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=noise)
            accountant = Prv([mechanism], max_self_compositions=[steps], eps_error=0.01, delta_error=delta / 1000)
            return float(accountant.compute_epsilon(delta, [steps])[2])

        found["prv_accountant"] = prv
    except ImportError:
        missing.append("prv_accountant")
    return found, missing


def timed(run: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    times = []
    result = None
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return statistics.median(times), result


def curves(quick: bool) -> list[dict[str, Any]]:
    others, _ = peers()
    engines: dict[str, tuple[str, Peer]] = {
        "confide": ("substitution", ours("substitution")),
        "dp_accounting PLD, REPLACE_ONE": ("substitution", dp_accounting_pld(NeighboringRelation.REPLACE_ONE)),
        "confide, add/remove": ("add-remove", ours("add-remove")),
        "dp_accounting PLD": ("add-remove", dp_accounting_pld(NeighboringRelation.ADD_OR_REMOVE_ONE)),
        "dp_accounting RDP": ("add-remove", dp_accounting_rdp),
        **{name: ("add-remove", peer) for name, peer in others.items()},
    }
    rows = []
    for setting, (rate, noise, steps, delta) in SETTINGS.items():
        if quick and steps > 10**5:
            continue
        base = 0.0
        for name, (adjacency, engine) in engines.items():
            try:
                seconds, epsilon = timed(lambda e=engine: e(rate, noise, steps, delta), 3)  # noqa: B023
            except Exception as error:
                rows.append(
                    {"setting": setting, "engine": name, "adjacency": adjacency, "failed": type(error).__name__}
                )
                continue
            base = base or seconds
            finite = epsilon if math.isfinite(epsilon) else None
            rows.append(
                {
                    "setting": setting,
                    "engine": name,
                    "adjacency": adjacency,
                    "epsilon": finite,
                    "time_ratio": seconds / base,
                }
            )
    return rows


def calibration() -> dict[str, Any]:
    from dp_accounting import mechanism_calibration

    def theirs() -> float:
        def event(noise: float) -> dp_event.DpEvent:
            return dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(noise)), 1000
            )

        return float(
            mechanism_calibration.calibrate_dp_mechanism(
                lambda: PLDAccountant(NeighboringRelation.REPLACE_ONE),
                event,
                3.0,
                1e-5,
                mechanism_calibration.ExplicitBracketInterval(0.5, 5.0),
                tol=1e-3,
            )
        )

    def mine() -> Any:
        _curve.cache_clear()
        return smallest_noise(0.01, 1000, 3.0, 1e-5)

    seconds, found = timed(mine, 3)
    their_seconds, their_noise = timed(theirs, 1)
    return {
        "noise_multiplier": found.noise_multiplier,
        "curve_evaluations": found.evaluations,
        "dp_accounting_noise_multiplier": their_noise,
        "dp_accounting_time_ratio": their_seconds / seconds,
    }


def groups_and_verify() -> dict[str, Any]:
    import tempfile
    from pathlib import Path

    from confide.accounting import LedgerWriter, Setting, read_ledger, write

    step = PoissonGaussian(1 / 32, 2.0, 320)

    def group(k: int) -> float:
        _curve.cache_clear()
        return curve([step], k=k).epsilon(8e-5)

    one, _ = timed(lambda: group(1), 5)
    ratios = {str(k): timed(lambda k=k: group(k), 3)[0] / one for k in (2, 5, 10, 20)}
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting("crt", "turn", "patterns", "everything", 32_000, 1.0)
        with LedgerWriter.create(Path(folder) / "ledger.jsonl", setting.to_plain(), [("train", step)]) as writer:
            writer.append(step)
        write(issue(read_ledger(Path(folder) / "ledger.jsonl"), 8e-5), Path(folder) / "certificate.json")

        def check() -> None:
            _curve.cache_clear()
            verify(folder)

        seconds, _ = timed(check, 3)
    return {"group_time_ratio_to_k1": ratios, "verify_seconds": seconds, "verify_time_ratio_to_k1_curve": seconds / one}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="leave out the runs of a million steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with contextlib.suppress(ImportError):
        from absl import logging as absl_logging

        absl_logging.set_verbosity(absl_logging.ERROR)
    found = {
        "curves": curves(options.quick),
        "calibration": calibration(),
        **groups_and_verify(),
        "missing_peers": peers()[1],
    }
    if options.json:
        print(json.dumps(found))
        return
    setting = None
    for row in found["curves"]:
        if row["setting"] != setting:
            setting = row["setting"]
            print(f"\n{setting}")
            print(f"  {'engine':<34}{'adjacency':<14}{'epsilon':>9}{'time (confide = 1)':>22}")
        if "failed" in row:
            print(f"  {row['engine']:<34}{row['adjacency']:<14}{'failed: ' + row['failed']:>31}")
        else:
            value = "inf" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
            print(f"  {row['engine']:<34}{row['adjacency']:<14}{value:>9}{row['time_ratio']:>22.2f}")
    fit = found["calibration"]
    print(f"\ncalibration to epsilon 3 (q=0.01, 1000 steps): noise {fit['noise_multiplier']:.4f} after "
          f"{fit['curve_evaluations']} curves; dp_accounting {fit['dp_accounting_noise_multiplier']:.4f} in "
          f"{fit['dp_accounting_time_ratio']:.1f} times the time")  # fmt: skip
    print(
        "group curves, time over k=1: "
        + ", ".join(f"k={k}: {r:.1f}" for k, r in found["group_time_ratio_to_k1"].items())
    )
    print(f"verify: {found['verify_seconds']:.2f} s, {found['verify_time_ratio_to_k1_curve']:.0f} times one curve")
    if found["missing_peers"]:
        print("not installed: " + ", ".join(found["missing_peers"]))


if __name__ == "__main__":
    main()
