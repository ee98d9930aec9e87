"""Attacks of an honest-but-curious server on P_k (FedSS, 3.3), and privacy accounting.

An attack is a function of NumPy from what the server sees (requests, updates, sums) to
a score for each class, high for classes of P_k. `success` measures it; `accounting` has
what differential privacy leaves to any attack. docs/privacy.md has the results.
"""

from tff_fedss.privacy import accounting, aggregate, intersection, phi, success, update
