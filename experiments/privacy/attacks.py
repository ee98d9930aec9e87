"""Attacks on what the server sees; each keeps a record for every client.

Every attack is judged three times: on P_k; on the same number of random classes
(the same scores: an attack above chance there would be an error); and with random
scores on P_k.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.privacy import seen
from tff_fedss import seeds
from tff_fedss.privacy import aggregate, intersection, success, update

CONTROLS = ("", "random classes", "guessed")
# The attacks on sums of rows; the second with noise of differential privacy.
TRACED = ("traced, no request", "traced through the noise, no request")
ON_SUMS = (*TRACED, "traced by phi alone, no request")
BEST = "bundle and features"
_ROW_ATTACKS = ("length", "median row", "public features", BEST)
# A row has changed if it moved by more than this share of the largest change.
_ROUNDING = 1e-5


class Attack:
    """The outcomes of an attack.

    Attributes:
        outcomes: For each attack by its full name, one of `CONTROLS` and x, the number
            of participations or the round: of each client the precision at chance,
            |P_k| over the number of scored classes, and then its `success.Success`.
    """

    def __init__(self, seed: int):
        self._rng = seeds.generator(seed, 0)
        self.outcomes: dict[tuple[str, str, int], list[tuple[float, ...]]] = {}

    def judge(
        self,
        name: str,
        x: int,
        scores: np.ndarray,
        truth: np.ndarray,
        claimed: np.ndarray | None = None,
    ) -> None:
        """Records an attack and its controls, unless P_k is all classes or none.

        Args:
            x: See `outcomes`.
            scores: float[classes], of the attacked classes.
            truth: bool[classes], those of P_k.
            claimed: bool[classes], those that the attack claims; by default the |P_k|
                with the highest scores.
        """
        if truth.all() or not truth.any():
            return
        if claimed is None:
            claimed = success.top(scores, np.count_nonzero(truth))
        guess = self._rng.random(len(truth))
        outcomes = (
            success.judge(scores, claimed, truth),
            success.judge(scores, claimed, self._rng.permutation(truth)),
            success.judge(guess, success.top(guess, np.count_nonzero(claimed)), truth),
        )
        for control, outcome in zip(CONTROLS, outcomes, strict=True):
            own = self.outcomes.setdefault((name, control, x), [])
            own.append((truth.mean(), *outcome))

    def summary(self) -> list[dict]:
        """Returns the means over clients, a row for each attack, control and x."""
        rows = []
        for (attack, control, x), own in self.outcomes.items():
            chances, values = np.array(own)[:, 0], np.array([one[1:] for one in own])
            means = zip(success.Success._fields, values.mean(0).tolist(), strict=True)
            rows.append(
                {
                    "attack": attack,
                    "control": control,
                    "x": x,
                    "clients": len(own),
                    "chance": float(np.mean(chances)),
                    **dict(means),
                    "auc_std": float(values[:, 0].std()),
                    "precision_at_std": float(values[:, 1].std()),
                }
            )
        return rows

    def on_requests(
        self,
        name: str,
        asked: np.ndarray,
        truth: np.ndarray,
        model: intersection.RequestModel,
        participations: Iterable[int],
    ) -> None:
        """Attacks a client by its requests, bool[most participations, n]."""
        for t in participations:
            scores = intersection.log_likelihood_ratio(asked[:t], model)
            self.judge(name, t, scores, truth, scores > 0)

    def on_rows(
        self,
        round_num: int,
        asked: np.ndarray,
        delta: np.ndarray,
        model: seen.Model,
        truth: np.ndarray,
        num_negatives: int,
        size_is_known: bool,
    ) -> None:
        """Attacks a client by its update of rows.

        Args:
            asked: bool[n], its request.
            delta: float[n, d], what it sends back.
            truth: bool[n], P_k.
            num_negatives: Number of classes that it asked for besides P_k.
            size_is_known: Whether the size of the request reveals |P_k|.
        """
        truth = truth[asked]
        found = row_scores(asked, delta, model, num_negatives)
        for name, of_all in found.items():
            scores = of_all[asked]
            claimed = success.two_groups(scores)
            if size_is_known:
                claimed = success.top(scores, len(scores) - num_negatives)
            self.judge(name, round_num, scores, truth, claimed)
        if size_is_known:
            claimed = success.two_groups(scores)
            self.judge(f"{name}, |P_k| not known", round_num, scores, truth, claimed)

    def on_phi(
        self,
        round_num: int,
        delta: Sequence[np.ndarray],
        model: seen.Model,
        truth: np.ndarray,
    ) -> None:
        """Attacks a client by its update of phi, without any row of W.

        The last two of its deltas are of the kernel and the bias of phi's last layer.
        """
        *_, kernel, bias = delta
        w = model.classifier
        for name, scores in {
            "bias": update.by_bias(bias, w),
            "kernel": update.by_kernel(kernel, w),
            "kernel, public images": model.scores_by_inputs(kernel),
        }.items():
            self.judge(name, round_num, scores, truth)


def row_scores(
    among: np.ndarray, delta: np.ndarray, model: seen.Model, num_negatives: int
) -> dict[str, np.ndarray]:
    """Returns the scores of rows by each attack on them.

    A row that has not moved is a negative without weight in the softmax, or a decoy: it
    has the lowest score, as all other rows.

    Args:
        among: bool[n], the rows.
        delta: float[n, d], their deltas.
        model: The model before the update.
        num_negatives: Number of negatives among the rows.

    Returns:
        float[n] by the name of the attack; `BEST` is the best.
    """
    moved = among & (update.lengths(delta) > 0)
    own, classifier = delta[moved], model.classifier[moved]
    if not len(own):
        return dict.fromkeys(_ROW_ATTACKS, np.zeros(len(among)))
    push = update.against_push(own, classifier, model.feature)
    num_negatives = max(num_negatives - np.count_nonzero(among & ~moved), 1)
    bundle = update.against_bundle(own, num_negatives, push)
    found = (
        update.lengths(own),
        update.against_median(own),
        push,
        update.together(push, bundle),
    )
    result = {}
    for name, scores in zip(_ROW_ATTACKS, found, strict=True):
        result[name] = np.full(len(among), scores.min())
        result[name][moved] = scores
    return result


class Sum(NamedTuple):
    """A round's sum of rows, as the attacks use it.

    Attributes:
        took_part: bool[clients], the contributing clients.
        present: bool[n], the rows that have changed.
        scores: float[n], by the best attack on rows; the lowest for missing rows.
        pushes: float[n], by `update.push`, linear in the sum.
        phi_scores: float[n], by an attack of `phi` on the mean delta of phi.
    """

    took_part: np.ndarray
    present: np.ndarray
    scores: np.ndarray
    pushes: np.ndarray
    phi_scores: np.ndarray


class Aggregate(Attack):
    """The attacks on the sums of rounds.

    Attributes:
        lone_shares: For each request, the share of its rows that no other client of the
            cohort asks for.

    Args:
        positives: bool[clients, n], P_k of all clients, the truth.
        num_decoys: Number of classes that a client asks for besides its own.
        drops_rows: Whether rows with few contributors may be missing from a sum, so
            that a client's classes need not be in all of its sums.
        noise_covariance: float[rounds, rounds], of the noise that the server adds to
            each coordinate of the sums, up to a factor; None: no noise.
    """

    def __init__(
        self,
        seed: int,
        positives: np.ndarray,
        num_decoys: int,
        drops_rows: bool = False,
        noise_covariance: np.ndarray | None = None,
    ):
        super().__init__(seed)
        self._positives = positives
        self._noise_covariance = noise_covariance
        self._num_decoys = num_decoys
        self._drops_rows = drops_rows
        self.sums: list[Sum] = []
        self.lone_shares: list[float] = []

    def add_sum(
        self,
        mean_delta: np.ndarray,
        phi_scores: np.ndarray,
        model: seen.Model,
        cohort: Sequence[int],
    ) -> None:
        """Keeps the sum of a round with a cohort, given by the clients' indices.

        The mean delta of W is float[n, d], from `aggregate.undo_momentum`.
        """
        lengths = update.lengths(mean_delta)
        present = lengths > _ROUNDING * lengths.max()
        # The expected number of positives, from the public |P_k|.
        absent = (1 - self._positives.mean()) ** len(cohort)
        expected = self._positives.shape[1] * (1 - absent)
        num_negatives = max(int(present.sum() - expected), 1)
        took_part = np.zeros(len(self._positives), bool)
        took_part[cohort] = True
        self.sums.append(
            Sum(
                took_part,
                present,
                row_scores(present, mean_delta, model, num_negatives)[BEST],
                update.push(mean_delta, model.classifier, model.feature),
                phi_scores,
            )
        )

    def on_last_sum(
        self, round_num: int, cohort: Sequence[int], requests: np.ndarray | None
    ) -> None:
        """Attacks the clients of the last sum, given by their indices, by it alone.

        Requests are bool[K, n], None if they are not seen.
        """
        _, present, scores, _, phi_scores = self.sums[-1]
        of_any = self._positives[cohort].any(0)
        claimed = present & success.two_groups(scores)
        own = np.where(present, scores, -np.inf)
        self.judge("of anyone in the cohort", round_num, own, of_any, claimed)
        claimed = success.two_groups(phi_scores)
        name = "of anyone in the cohort, by phi"
        self.judge(name, round_num, phi_scores, of_any, claimed)
        if requests is None:
            return
        counts = requests.sum(0)
        for client, asked in zip(cohort, requests, strict=True):
            truth = self._positives[client]
            self.lone_shares.append((counts[asked] == 1).mean())
            num_positives = max(np.count_nonzero(asked) - self._num_decoys, 1)
            own = np.where(asked, scores, -np.inf)
            claimed = success.top(own, num_positives)[asked]
            name = "with the client's request"
            self.judge(name, round_num, own[asked], truth[asked], claimed)
            lone = asked & (counts == 1)
            claimed = success.two_groups(own[lone])
            name = "its rows that are nobody else's"
            self.judge(name, round_num, own[lone], truth[lone], claimed)

    def trace(self, rounds: Iterable[int]) -> None:
        """Attacks all clients by all sums, without any request."""
        for last in rounds:
            cohorts, present, scores, pushes, phi_scores = map(
                np.array, zip(*self.sums[:last], strict=True)
            )
            by_rows = aggregate.traced(scores, cohorts)
            by_phi = aggregate.traced(phi_scores, cohorts)
            if self._noise_covariance is not None:
                through_noise = aggregate.traced_through_noise(
                    pushes, cohorts, self._noise_covariance[:last, :last]
                )
            for client in np.flatnonzero(cohorts.any(0)):
                truth = self._positives[client]
                traced = by_rows[client]
                if not self._drops_rows:
                    kept = present[cohorts[:, client]].all(0)
                    own = np.where(kept, 0.0, -np.inf)
                    self.judge("in all its sums, no request", last, own, truth, kept)
                    traced = np.where(kept, traced, -np.inf)
                self.judge(TRACED[0], last, traced, truth)
                if self._noise_covariance is not None:
                    self.judge(TRACED[1], last, through_noise[client], truth)
                self.judge(ON_SUMS[-1], last, by_phi[client], truth)
