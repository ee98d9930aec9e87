"""Attacks of an honest-but-curious server on P_k (FedSS, 3.3), and privacy accounting.

An attack is a NumPy function from what the server sees (requests, updates, sums) to a
score for each class, high for classes of P_k. `success` measures attacks; `accounting`
computes the bound of differential privacy on any attack. docs/privacy.md has the
results.
"""

from tff_fedss.privacy import accounting, aggregate, intersection, success, update
