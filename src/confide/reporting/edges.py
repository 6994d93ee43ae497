"""Words for the last pages of a report: what its terms mean, and the traps on the way to a guarantee."""

from __future__ import annotations

GLOSSARY = (
    ("secret", "A part of a text that must not leak: a name, a number, an address; whatever the policy is about."),
    ("policy", "The rule that finds secrets in a record. It may miss some."),
    ("conservative policy", "A second, wider rule. What it flags is private, even where the policy found nothing."),
    ("record", "What is trained on at a time: a document, a turn of a dialogue or a sentence."),
    (
        "public, private",
        "A record is public if no policy flags it. All others are private and are trained on with noise.",
    ),
    ("<MASK>", "What stands in the place of a secret that was found."),
    (
        "ε (epsilon)",
        "How much more likely any conclusion about a secret can become by looking at the model: at most e^ε times. Smaller is stronger.",
    ),
    (
        "δ (delta)",
        "The probability that may be left over beyond e^ε. It should be far below one in the number of records.",
    ),
    ("k", "How many training records change when a secret is masked. A secret that is repeated needs a larger k."),
    ("adjacency", "Which two corpora a guarantee compares. Epsilons of different adjacencies do not compare."),
    (
        "ledger",
        "The list of everything that was spent on private records, written before it was spent and chained by hashes.",
    ),
    (
        "certificate",
        "The guarantees that follow from the ledger, with their assumptions. Anybody can compute it again.",
    ),
    ("canary", "An invented secret, planted to be attacked."),
    ("exposure", "How far up a planted secret ranks among all candidates, in bits. Chance gives 1.44 on average."),
    ("ceiling", "What no attack can exceed if the certificate holds."),
    ("audit", "An attack that turns into a lower bound on ε. Above the certificate's ε it would refute it."),
    ("miss rate γ", "The share of secrets that the policy does not find."),
    ("perplexity", "How surprised the model is by text it has not seen. Lower is better; 1 is perfect."),
)

EDGES = (
    (
        "Comparing ε with another tool's",
        "Theirs is mostly for a record that is added or removed; a masked secret is a substitution, about 1.2 to 2 times as much.",
    ),
    (
        "A repeated secret",
        "A value in k records has the guarantee for k, not the one for a single record; and k times ε is not a bound.",
    ),
    (
        "A miss rate from a small sample",
        "Two hundred labels without a miss bound the rate by 1.5 %, not by δ. The bound goes into δ unless everything is flagged by construction.",
    ),
    ("A miss rate averaged over the corpus", "Some contexts may always be missed. The average shrinks δ, never ε."),
    ("What no policy flags", "It is public, is trained on without noise, and has no guarantee."),
    ("Validation and test records", "They are outside of the certificate; validate on records that no policy flags."),
    ("Tuning and choosing among runs", "Every run on the private records counts, those that were thrown away too."),
    ("Attacks that fail", "They show that these attacks fail. Only the certificate speaks about all attacks."),
    (
        "An audit below its reach",
        "An audit cannot contradict what it cannot reach: look at the largest bound that it could have shown.",
    ),
    ("Verification", "It checks arithmetic and the ledger's chain, not whether the run did what the ledger says."),
    ("The hash chain", "It is no signature. Keep a copy of the certificate where the run cannot write."),
    (
        "Noise in floating point",
        "Its last bits tell what it was added to; sums and noise are rounded to one lattice. How long a step takes is not covered.",
    ),
    (
        "Selective privacy (S-DP)",
        "Its ε is for corpora of equal mask pattern and does not compare with a confidentiality ε.",
    ),
)
