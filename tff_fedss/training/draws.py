"""The random draws of a run, each a function of (seed, round, client id) alone.

Nothing here has a state, so a resumed run draws the same as an uninterrupted one.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from tff_fedss import errors


def _digest(*key: object) -> bytes:
    """Hashes a key to 16 bytes that are independent for different keys."""
    text = "\0".join(str(part) for part in key)
    # A client's name may be that of a folder, whose bytes need not be UTF-8.
    encoded = text.encode(errors="surrogateescape")
    return hashlib.blake2b(encoded, digest_size=16).digest()


def _generator(*key: object) -> np.random.Generator:
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(_digest(*key), "little"))
    )


def client_seed(seed: int, round_num: int, client_id: str) -> np.ndarray:
    """Returns a client's seed in a round (from 1), int32[2], for `build_fedss`."""
    return np.frombuffer(_digest("client", seed, round_num, client_id)[:8], np.int32)


def permanent_seed(seed: int, client_id: str) -> np.ndarray:
    """Returns the seed, int32[2], of a client's draws for all rounds."""
    return np.frombuffer(_digest("permanent", seed, client_id)[:8], np.int32)


def cohort(
    seed: int, round_num: int, client_ids: Sequence[str], cohort_size: int
) -> list[str]:
    """Selects K distinct clients uniformly (FedSS, Algorithm 1, line 3).

    The round counts from 1. Raises ValueError if K exceeds the number of clients.
    """
    errors.check_range("cohort_size", cohort_size, 1, len(client_ids), whole=True)
    generator = _generator("cohort", seed, round_num)
    chosen = generator.choice(len(client_ids), cohort_size, replace=False)
    return [client_ids[i] for i in chosen]


def poisson_cohort(
    seed: int, round_num: int, client_ids: Sequence[str], cohort_size: int
) -> list[str]:
    """Selects each of N clients with probability K / N, as accounting assumes.

    There may be none. Raises ValueError if K exceeds N.
    """
    errors.check_range("cohort_size", cohort_size, 1, len(client_ids))
    draws = _generator("poisson cohort", seed, round_num).random(len(client_ids))
    chosen = np.flatnonzero(draws < cohort_size / len(client_ids))
    return [client_ids[i] for i in chosen]


SAMPLINGS = {"fixed": cohort, "poisson": poisson_cohort}
