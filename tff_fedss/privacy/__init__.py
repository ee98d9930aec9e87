"""What an honest-but-curious server learns of the classes that a client holds.

The server of FedSS keeps to the protocol and looks at what passes through its hands:
requests, updates, sums. Section 3.3 means the sampled negatives to hide the positives
P_k among them. An attack here is a function of NumPy from what the server sees to a
score for each class, the higher the more it takes the class for one of P_k; `success`
says how often it is right. docs/privacy.md has what they find. `accounting` is the
other side: what differential privacy leaves to any attack.
"""

from tff_fedss.privacy import accounting, aggregate, intersection, phi, success, update

__all__ = ["accounting", "aggregate", "intersection", "phi", "success", "update"]
