"""Settings of a federated process: class sets, client training, server update."""

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import class_sets, errors, models
from tff_fedss.algorithms import aggregation, exchange, optimizers

Optimizer = tff.learning.optimizers.Optimizer
LearningRateFn = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class ClassSets:
    """Settings of clients' class sets and requests (Algorithm 1, lines 5-7).

    Attributes:
        max_positives: The largest |P_k| of any client: class sets are padded to
            max_positives + num_negatives. None for FullSoftmax and with a `builder`.
        num_negatives: m = |N_k|; 0 for PosOnly and FullSoftmax, which draw none.
        logit_correction: "inclusion" or "none", see `class_sets.SampledClasses`.
        builder: A builder of S_k that replaces the method's, max_positives,
            num_negatives and logit_correction.
        requests: The rows of W that a client gets: "sampled", those of S_k; "union",
            those that any client of the cohort asks for; "all". The resulting model is
            the same. FullSoftmax's clients always get all.
        with_positives: Whether a client's argument also has "positives", int32[|P_k|]:
            its distinct labels. Its data are then read once, to train; else also
            before, for the labels. (TFF selects rows for all clients at once, after all
            have drawn.)
    """

    max_positives: int | None = None
    num_negatives: int = 0
    logit_correction: str = "inclusion"
    builder: class_sets.ClassSetBuilder | None = None
    requests: str = "sampled"
    with_positives: bool = False

    def __post_init__(self):
        errors.check_choice("requests", self.requests, exchange.REQUESTS)
        errors.check_kind(
            "builder",
            self.builder,
            class_sets.ClassSetBuilder | None,
            "a class_sets.ClassSetBuilder",
        )

    def builder_of(self, method: str, num_classes: int) -> class_sets.ClassSetBuilder:
        """Returns the class set builder of one of `fedss.METHODS`, for n classes."""
        takes_none = self.builder or method in ("pos_only", "full_softmax")
        if self.num_negatives and takes_none:
            who = "a builder" if self.builder else method
            raise ValueError(f"num_negatives={self.num_negatives}: {who} takes none.")
        builder = self.builder or self._builder_of(method, num_classes)
        if builder.num_classes != num_classes:
            found = builder.num_classes
            raise ValueError(f"builder is for {found} classes, {num_classes=}.")
        if method == "full_softmax" and not builder.is_everything:
            raise ValueError("full_softmax takes no builder but of all classes.")
        return builder

    def _builder_of(self, method: str, num_classes: int) -> class_sets.ClassSetBuilder:
        if method == "full_softmax":
            return class_sets.AllClasses(num_classes)
        if method == "neg_only":
            errors.check_range("num_negatives", self.num_negatives, 1)
        return class_sets.SampledClasses(
            num_classes, self.num_negatives, self.max_positives, self.logit_correction
        )


def _check_learning_rate_fn(learning_rate_fn: LearningRateFn | None) -> None:
    if learning_rate_fn is not None:
        errors.check_function("learning_rate_fn", learning_rate_fn, 1, "from the round")


@dataclasses.dataclass(frozen=True)
class ClientTraining:
    """Settings of a client's training (Algorithm 1, lines 8-11).

    Attributes:
        optimizer: A TFF optimizer; by default SGD with learning rate eta = 0.01 (A.2).
            Its state is reset in every round. On GPUs one by `over_one_vector` is
            faster.
        batch_size: The mini-batch b (A.2: 32). A last short batch is also a step.
        num_epochs: Passes over the local data (A.2: 1).
        logit_scale: The fixed scale of the cosine logits (A.2: 20).
        loss_fn: (logits float32[b, L], targets int32[b], `class_sets.ClassSet`) ->
            float32[b], which replaces the method's loss. Targets are positions in S_k;
            the logits are uncorrected.
        use_xla: Whether XLA compiles a step. A last short batch is then padded, and the
            padding does not count; `models.CountedDropout` draws other masks.
        image_dtype: Dtype of the images in the data; phi gets float32.
        learning_rate_fn: Sets the optimizer's learning rate in each round, as in
            `tff.learning.algorithms.build_weighted_fed_avg_with_optimizer_schedule`: a
            function in TensorFlow from the round, int32[] counted from 0.
        proximal: mu of FedProx (Li et al., 2020, Eq. 2): adds mu / 2 |theta -
            theta_0|^2 to a client's loss, over phi and its rows of W.
    """

    optimizer: Optimizer = dataclasses.field(
        default_factory=lambda: optimizers.over_one_vector(
            tff.learning.optimizers.build_sgdm(0.01)
        )
    )
    batch_size: int = 32
    num_epochs: int = 1
    logit_scale: float = models.LOGIT_SCALE
    loss_fn: Callable[..., tf.Tensor] | None = None
    use_xla: bool = False
    image_dtype: tf.DType = tf.uint8
    learning_rate_fn: LearningRateFn | None = None
    proximal: float = 0.0

    def __post_init__(self):
        optimizers.check_optimizer("optimizer of ClientTraining", self.optimizer)
        errors.check_range("proximal", self.proximal, 0)
        errors.check_range("batch_size", self.batch_size, 1, whole=True)
        # NumPy's integers would be tensors of another type.
        object.__setattr__(self, "batch_size", int(self.batch_size))
        errors.check_range("num_epochs", self.num_epochs, 1, whole=True)
        errors.check_range("logit_scale", self.logit_scale, 0, above=True)
        _check_learning_rate_fn(self.learning_rate_fn)
        if self.loss_fn is not None:
            wanted = "from (logits, targets, class_set) to float32[examples]"
            errors.check_function(
                "loss_fn", self.loss_fn, 3, wanted, tf.keras.losses.Loss
            )


@dataclasses.dataclass(frozen=True)
class ServerUpdate:
    """Settings of the server's update (Algorithm 1, lines 12-13).

    A client's update that is too large fails the round, unless an aggregator clips or
    zeroes it, such as `adapters.WrappedRowsFactory`.

    Attributes:
        optimizer: A TFF optimizer; by default `build_sparse_sgdm` with learning rate
            alpha = 1.0 and momentum 0.9 (A.2). It gets the gradient of W as
            `tf.IndexedSlices` (of which TFF's optimizers make a dense one), that of
            FullSoftmax as a tensor.
        phi_aggregator: A factory of `tff.aggregators` for the clients' deltas of phi,
            a tuple of tensors: robust, secure, compressed, private; by default the mean
            of line 12. An unweighted one needs `client_weighting="uniform"`.
        rows_aggregator: The same for the deltas of W's rows: a factory over
            `aggregation.SparseRows`, whose result is another one or a dense matrix; by
            default `aggregation.SparseRowsFactory`. A TFF factory needs an adapter, see
            the module `adapters`. For FullSoftmax it is a plain TFF factory over
            float32[n, d].
        joint_aggregator: Replaces both where phi and W need one norm: a factory over
            `aggregation.ModelDelta`, such as `user_level_dp.PrivateMeanFactory` or one
            of `adapters`. For FullSoftmax a plain TFF factory.
        client_weighting: The weight of a client in line 12: "num_examples" is n_k;
            "uniform" 1; the members of `tff.learning.ClientWeighting` are the same; or
            a function from n_k, float32[] and positive, to a weight of at least 0. A
            client without examples, or with a rejected update, has weight 0 (in an
            unweighted factory, zero values).
        after_step: Maps W, float32[n, d], to the round's final W and scalar metrics by
            name, other names than `finalize_metrics` has: a server regularization, such
            as FedAwS's.
        learning_rate_fn: As in `ClientTraining`, for this optimizer.
    """

    optimizer: Optimizer = dataclasses.field(
        default_factory=lambda: optimizers.build_sparse_sgdm(1.0, 0.9)
    )
    phi_aggregator: aggregation.Factory | None = None
    rows_aggregator: aggregation.Factory | None = None
    joint_aggregator: aggregation.Factory | None = None
    client_weighting: aggregation.ClientWeighting = "num_examples"
    after_step: (
        Callable[[tf.Tensor], tuple[tf.Tensor, Mapping[str, tf.Tensor]]] | None
    ) = None
    learning_rate_fn: LearningRateFn | None = None

    def __post_init__(self):
        optimizers.check_optimizer("optimizer of ServerUpdate", self.optimizer)
        _check_learning_rate_fn(self.learning_rate_fn)
        if self.after_step is not None:
            wanted = "from W to (W, metrics)"
            errors.check_function("after_step", self.after_step, 1, wanted)
        weighting = aggregation.check_weighting(self.client_weighting)
        object.__setattr__(self, "client_weighting", weighting)
        if self.joint_aggregator and (self.phi_aggregator or self.rows_aggregator):
            raise ValueError(
                "give joint_aggregator, or phi_aggregator and rows_aggregator."
            )
        for name in ("phi_aggregator", "rows_aggregator", "joint_aggregator"):
            factory = getattr(self, name)
            if factory is None:
                continue
            aggregation.check_factory(name, factory)
            if weighting != "uniform" and not aggregation.uses_weights(factory):
                inner = type(getattr(factory, "inner", factory)).__name__
                cure = 'which ignores weights: give client_weighting="uniform"'
                raise ValueError(f"{name} is a {inner}, {cure}.")
