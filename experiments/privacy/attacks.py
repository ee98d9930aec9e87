"""Attacks on what the server sees; each keeps a record for every client.

Every attack is judged three times: on P_k; on the same number of random other classes
(the same scores: an attack above chance there would be an error); and with random
scores on P_k.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.privacy import seen
from tff_fedss import seeds
from tff_fedss.privacy import aggregate, intersection, phi, success, update

CONTROLS = ("", "random classes", "guessed")
# The attacks on sums of rows; the second with noise of differential privacy.
TRACED = ("traced, no request", "traced through the noise, no request")
ON_SUMS = (*TRACED, "traced by phi alone, no request")


class Record(NamedTuple):
    """The outcome of one attack on one client.

    Attributes:
        attack: Its full name.
        control: One of `CONTROLS`.
        x: Participations or rounds, see `Attack.unit`.
        chance: The precision at chance, |P_k| over the number of scored classes.
        success: The outcome.
    """

    attack: str
    control: str
    x: int
    chance: float
    success: success.Success


class Attack:
    """The records of an attack.

    Attributes:
        unit: The unit of x.
        records: The records so far.
    """

    def __init__(self, seed: int, unit: str = "round"):
        self._rng = seeds.generator(seed, 0)
        self.unit = unit
        self.records: list[Record] = []

    def judge(
        self,
        name: str,
        x: int,
        scores: np.ndarray,
        claimed: np.ndarray,
        truth: np.ndarray,
    ) -> None:
        """Records an attack and its controls, unless P_k is all classes or none.

        Args:
            name: Name of the attack.
            x: See `Record`.
            scores: float[classes], of the attacked classes.
            claimed: bool[classes], those that the attack claims.
            truth: bool[classes], those of P_k.
        """
        if truth.all() or not truth.any():
            return
        guess = self._rng.random(len(truth))
        outcomes = (
            success.judge(scores, claimed, truth),
            success.judge(scores, claimed, self._rng.permutation(truth)),
            success.judge(guess, success.top(guess, np.count_nonzero(claimed)), truth),
        )
        for control, outcome in zip(CONTROLS, outcomes, strict=True):
            self.records.append(Record(name, control, x, truth.mean(), outcome))

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
            self.judge(name, t, scores, scores > 0, truth)

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
            round_num: The round.
            asked: bool[n], its request.
            delta: float[n, d], what it sends back.
            model: The model that it got.
            truth: bool[n].
            num_negatives: Number of classes that it asked for besides P_k.
            size_is_known: Whether the size of the request reveals |P_k|.
        """
        truth, rows = truth[asked], delta[asked]
        for name, scores in row_scores(
            rows, model.classifier[asked], model.feature, num_negatives
        ).items():
            claimed = success.two_groups(scores)
            if size_is_known:
                claimed = success.top(scores, len(scores) - num_negatives)
            self.judge(name, round_num, scores, claimed, truth)
        if size_is_known:
            claimed = success.two_groups(scores)
            self.judge(f"{name}, |P_k| not known", round_num, scores, claimed, truth)

    def on_phi(
        self,
        round_num: int,
        delta: Sequence[np.ndarray],
        model: seen.Model,
        labels: np.ndarray,
        truth: np.ndarray,
    ) -> None:
        """Attacks a client by its update of phi, without any row of W.

        Args:
            round_num: The round.
            delta: Delta of phi. Its last two are the kernel and the bias of its last
                layer.
            model: The model that it got.
            labels: int[images], of the public images.
            truth: bool[n].
        """
        *_, kernel, bias = delta
        w = model.classifier
        for name, scores in {
            "bias": phi.by_bias(bias, w),
            "kernel": phi.by_kernel(kernel, w),
            "kernel, public images": phi.by_inputs(kernel, w, model.inputs, labels),
        }.items():
            claimed = success.top(scores, np.count_nonzero(truth))
            self.judge(name, round_num, scores, claimed, truth)


def row_scores(
    rows: np.ndarray, classifier: np.ndarray, feature: np.ndarray, num_negatives: int
) -> dict[str, np.ndarray]:
    """Returns the scores of rows by each attack on them, the best last.

    A row that has not moved is a negative without weight in the softmax, or a decoy: it
    has the lowest score.
    """
    moved = update.lengths(rows) > 0
    own = rows[moved]
    if not len(own):
        return dict.fromkeys(_ROW_ATTACKS, np.zeros(len(rows)))
    push = update.against_push(own, classifier[moved], feature)
    num_negatives = max(num_negatives - np.count_nonzero(~moved), 1)
    bundle = update.against_bundle(own, num_negatives, push)
    found = (
        update.lengths(own),
        update.against_median(own),
        push,
        update.together(push, bundle),
    )
    result = {}
    for name, scores in zip(_ROW_ATTACKS, found, strict=True):
        result[name] = np.full(len(rows), scores.min())
        result[name][moved] = scores
    return result


_ROW_ATTACKS = ("length", "median row", "public features", "bundle and features")


def scores_of_all(
    among: np.ndarray, delta: np.ndarray, model: seen.Model, num_negatives: int
) -> np.ndarray:
    """Returns the best attack's scores of some rows; the others have the lowest.

    Args:
        among: bool[n], the rows.
        delta: float[n, d], their deltas.
        model: The model before the update.
        num_negatives: Number of negatives among the rows.
    """
    *_, found = row_scores(
        delta[among], model.classifier[among], model.feature, num_negatives
    ).values()
    scores = np.full(len(among), found.min())
    scores[among] = found
    return scores


class Cohort(NamedTuple):
    """The clients of a round.

    Attributes:
        clients: int[K], indices of its clients.
        asked: bool[K, n], their requests; None if they are not seen.
    """

    clients: np.ndarray
    asked: np.ndarray | None


class Aggregate(Attack):
    """The attacks on the sums of rounds.

    Args:
        seed: Seed of the controls.
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
        # By round.
        self._scores: list[np.ndarray] = []
        self._pushes: list[np.ndarray] = []
        self._phi_scores: list[np.ndarray] = []
        self._present: list[np.ndarray] = []
        self._cohorts: list[np.ndarray] = []
        self.lone_shares: list[float] = []

    def on_sum(
        self,
        round_num: int,
        mean_delta: np.ndarray,
        phi_scores: np.ndarray,
        model: seen.Model,
        cohort: Cohort,
        judged: bool,
    ) -> None:
        """Keeps a round's sum, and attacks its cohort.

        Args:
            round_num: The round.
            mean_delta: float[n, d], of W, from `aggregate.undo_momentum`.
            phi_scores: float[n], by an attack of `phi` on the mean delta of phi.
            model: The model that the clients got.
            cohort: The contributing clients.
            judged: Whether to attack this sum alone.
        """
        lengths = update.lengths(mean_delta)
        # Rounding makes unchanged rows slightly different from 0.
        present = lengths > _ROUNDING * lengths.max()
        num_negatives = max(
            int(present.sum() - self._expected_positives(len(cohort.clients))), 1
        )
        scores = scores_of_all(present, mean_delta, model, num_negatives)
        took_part = np.zeros(len(self._positives), bool)
        took_part[cohort.clients] = True
        self._scores.append(scores)
        if self._noise_covariance is not None:
            self._pushes.append(
                update.push(mean_delta, model.classifier, model.feature)
            )
        self._phi_scores.append(phi_scores)
        self._present.append(present)
        self._cohorts.append(took_part)
        if judged:
            self._attack_cohort(round_num, scores, phi_scores, present, cohort)

    def _attack_cohort(
        self,
        round_num: int,
        scores: np.ndarray,
        phi_scores: np.ndarray,
        present: np.ndarray,
        cohort: Cohort,
    ) -> None:
        of_any = self._positives[cohort.clients].any(0)
        claimed = present & success.two_groups(scores)
        own = np.where(present, scores, -np.inf)
        self.judge("of anyone in the cohort", round_num, own, claimed, of_any)
        claimed = success.two_groups(phi_scores)
        name = "of anyone in the cohort, by phi"
        self.judge(name, round_num, phi_scores, claimed, of_any)
        if cohort.asked is None:
            return
        counts = aggregate.num_contributors(cohort.asked)
        for client, asked in zip(cohort.clients, cohort.asked, strict=True):
            truth = self._positives[client]
            self.lone_shares.append((counts[asked] == 1).mean())
            num_positives = max(np.count_nonzero(asked) - self._num_decoys, 1)
            own = aggregate.assigned(scores, asked)
            claimed = success.top(own, num_positives)[asked]
            name = "with the client's request"
            self.judge(name, round_num, own[asked], claimed, truth[asked])
            lone = asked & (counts == 1)
            claimed = success.two_groups(own[lone])
            name = "its rows that are nobody else's"
            self.judge(name, round_num, own[lone], claimed, truth[lone])

    def trace(self, rounds: Iterable[int]) -> None:
        """Attacks all clients by all sums, without any request."""
        for last in rounds:
            cohorts = np.array(self._cohorts[:last])
            present = np.array(self._present[:last])
            by_rows, by_phi = (
                aggregate.traced(np.array(scores[:last]), cohorts)
                for scores in (self._scores, self._phi_scores)
            )
            through_noise = None
            if self._noise_covariance is not None:
                through_noise = aggregate.traced_through_noise(
                    np.array(self._pushes[:last]),
                    cohorts,
                    self._noise_covariance[:last, :last],
                )
            for client, truth in enumerate(self._positives):
                if not cohorts[:, client].any():
                    continue
                found = {"traced": by_rows[client]}
                if not self._drops_rows:
                    kept = aggregate.in_all_sums(present, cohorts[:, client])
                    found = {
                        "in all its sums": np.where(kept, 0.0, -np.inf),
                        "traced": np.where(kept, by_rows[client], -np.inf),
                    }
                if through_noise is not None:
                    found["traced through the noise"] = through_noise[client]
                found["traced by phi alone"] = by_phi[client]
                for name, scores in found.items():
                    claimed = success.top(scores, np.count_nonzero(truth))
                    self.judge(
                        f"{name}, no request",
                        last,
                        scores,
                        kept if name == "in all its sums" else claimed,
                        truth,
                    )

    def _expected_positives(self, cohort_size: int) -> float:
        """Returns the expected number of positives in a sum, from the public |P_k|."""
        share = self._positives.mean()
        return self._positives.shape[1] * (1 - (1 - share) ** cohort_size)


_ROUNDING = 1e-5


def summary(records: Iterable[Record]) -> list[dict]:
    """Returns the means over clients, a row for each attack, control and x."""
    groups: Mapping[tuple, list[Record]] = collections.defaultdict(list)
    for record in records:
        groups[record.attack, record.control, record.x].append(record)
    rows = []
    for (attack, control, x), own in groups.items():
        values = np.array([record.success for record in own])
        means = dict(zip(success.Success._fields, values.mean(0).tolist(), strict=True))
        rows.append(
            {
                "attack": attack,
                "control": control,
                "x": x,
                "clients": len(own),
                "chance": float(np.mean([record.chance for record in own])),
                **means,
                "auc_std": float(values[:, 0].std()),
                "precision_at_std": float(values[:, 1].std()),
            }
        )
    return rows
