"""Policies: what counts as a secret. One record's text in, findings out."""

from .base import Finding, Policy, merged, register
from .loading import COMPOSED, known_policies, load, policy_name

__all__ = ["COMPOSED", "Finding", "Policy", "known_policies", "load", "merged", "policy_name", "register"]
