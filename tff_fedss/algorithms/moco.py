"""MoCo v2, with the focal, clustered and filtered losses of Kaminsky and Rotstein.

He et al., "Momentum Contrast for Unsupervised Visual Representation Learning" (2020);
Chen et al., "Improved Baselines with Momentum Contrastive Learning" (2020); Kaminsky
and Rotstein, "Focal Loss for Contrastive Learning" (2021). A step, as in Algorithm 1 of
He et al.:

    theta_k <- m theta_k + (1 - m) theta_q        the key encoder follows
    q = f_q(query views), k = f_k(key views)      both at length 1
    loss of (q.k / T, q.queue / T)                Eq. 1 and 4 to 6, see `losses`
    SGD on theta_q
    the keys replace the oldest ones in the queue

It is centralized: there are no clients.

The statistics of a BatchNorm over the whole batch reveal which key belongs to which
query. MoCo has separate statistics on each of 8 GPUs, and shuffles the keys' images
between them (section 3.3); its code for one GPU splits the statistics. Here a backbone
with `SplitBatchNormalization`, and `shuffle_keys`, do the same. GroupNorm has no such
statistics.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import errors, losses, models
from tff_fedss.algorithms.in_place import InPlace, as_numbers

_NUM_CLUSTERINGS = 10  # Runs of k-means, of which the best is taken.
_NO_LABEL = -1
_QUEUE_LABELS = "queue_labels"
_OF_QUEUE = ("queue", _QUEUE_LABELS)

# What decides which keys are in the query's cluster: k-means of the queue (section
# 6.2), or an oracle, the images' labels.
MOCO_CLUSTERS = ("k_means", "labels")


class MoCo(InPlace):
    """A query and a key encoder with a queue of keys, trained step by step.

    Attributes:
        encoder: f_q, from images to embeddings.
        key_encoder: f_k, from images to keys.
        queue: float32[K, embedding_dim], keys of length 1.
        queue_labels: int32[K], the labels of the keys' images; -1: not known.
        pointer: int32[], the position of the oldest key, replaced next.
        centers: float32[clusters, embedding_dim], see `fit_clusters`.
    """

    def __init__(
        self,
        backbone_fn: Callable[[], tf.keras.Model],
        optimizer: tf.keras.optimizers.Optimizer,
        *,
        queue_size: int,
        embedding_dim: int = 128,
        temperature: float = 0.2,
        key_momentum: float = 0.999,
        weight_decay: float = 1e-4,
        gamma: float = 0.0,
        form: str = "plain",
        num_clusters: int = 10,
        clusters: str = "k_means",
        shuffle_keys: bool = False,
        seed: int = 0,
    ):
        """Builds two equal encoders and draws a queue of random directions.

        Args:
            backbone_fn: Builds the backbone, the network to be trained, with the same
                weights each time.
            queue_size: K.
            temperature: T.
            key_momentum: m.
            weight_decay: Decay of all weights, see `InPlace`.
            gamma: Gamma of the focal loss; 0 is InfoNCE.
            form: One of `losses.INFO_NCE_FORMS`.
            num_clusters: Number of clusters of k-means.
            clusters: One of `MOCO_CLUSTERS`.
            shuffle_keys: Whether the key encoder sees the images of a batch in another
                order, drawn in each step, so that its split statistics are over other
                groups than the queries'.
            seed: Seed of the head, the queue, k-means and the shuffling.
        """
        errors.check_choice("clusters", clusters, MOCO_CLUSTERS)
        self._backbone = backbone_fn()
        self.encoder = models.with_projection_head(self._backbone, embedding_dim, seed)
        self.key_encoder = models.with_projection_head(
            backbone_fn(), embedding_dim, seed
        )
        directions = tf.random.stateless_normal(
            [queue_size, embedding_dim], [seed, 1], alg="philox"
        )
        self.queue = tf.Variable(tf.math.l2_normalize(directions, 1))
        self.queue_labels = tf.Variable(tf.fill([queue_size], _NO_LABEL))
        self.pointer = tf.Variable(0)
        self.centers = tf.Variable(tf.zeros([num_clusters, embedding_dim]))
        self._key_variables = list(self.key_encoder.trainable_variables)
        super().__init__(
            self.encoder.trainable_variables,
            optimizer,
            [
                *self.encoder.non_trainable_variables,
                *self.key_encoder.variables,
                self.queue,
                self.queue_labels,
                self.pointer,
                self.centers,
            ],
            weight_decay,
        )
        self._temperature = temperature
        self._key_momentum = key_momentum
        self._gamma = gamma
        self._form = form
        self._clusters = clusters
        self._shuffle_keys = shuffle_keys
        self._seed = seed
        self._update_graph = tf.function(self._step)
        self._measure_graph = tf.function(self._measure_step)

    # --- Training ---------------------------------------------------------------------

    def update(
        self, query_views: tf.Tensor, key_views: tf.Tensor, labels: tf.Tensor
    ) -> dict[str, float]:
        """Does one step on two views of the same images, uint8[examples, h, w, c].

        There are at most as many as the queue holds. Labels are int32[examples], -1
        where not known; only clusters by labels depend on them.

        Returns sums over the queries, measured before the step: `loss`, `accuracy`
        (queries to which no key in the queue is as similar as their own),
        `num_examples`, and for forms with clusters `cluster_share` (the share of the
        queue in the query's cluster), `labelled` (keys with a label in the cluster of a
        query with a label) and `right` (those with the query's label).
        """
        sums = self._update_graph(query_views, key_views, labels)
        return {**as_numbers(sums), "num_examples": len(query_views)}

    def round_metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Returns means and, with clusters, `cluster_share` and `cluster_purity`.

        The purity is the share of the query's class among the keys in its cluster.
        """
        sums = dict(sums)
        labelled, right = sums.pop("labelled", 0), sums.pop("right", 0)
        purity = {"cluster_purity": right / labelled} if labelled else {}
        return {**super().round_metrics(sums), **purity}

    def _step(self, query_views, key_views, labels):
        self._move_key_encoder()
        keys = self._keys(key_views)
        with tf.GradientTape() as tape:
            positive, negative = self._logits(_embed(self.encoder, query_views), keys)
            same = (
                None if self._form == "plain" else self._is_same_cluster(keys, labels)
            )
            example_losses = losses.info_nce_loss(
                positive,
                negative,
                gamma=self._gamma,
                form=self._form,
                is_same_cluster=same,
            )
            loss = tf.reduce_mean(example_losses)
        self._descend(tape.gradient(loss, self._trainable))
        is_correct = positive > tf.reduce_max(negative, 1)
        sums = {
            "loss": tf.reduce_sum(example_losses),
            "accuracy": tf.math.count_nonzero(is_correct),
        }
        if same is not None:
            labelled = same & self._is_labelled(labels)
            right = labelled & self._is_same_label(labels)
            sums |= {
                "cluster_share": tf.reduce_sum(
                    tf.reduce_mean(tf.cast(same, tf.float32), 1)
                ),
                "labelled": tf.math.count_nonzero(labelled),
                "right": tf.math.count_nonzero(right),
            }
        self._enqueue(keys, labels)
        return sums

    def _keys(self, views: tf.Tensor) -> tf.Tensor:
        """float32[examples, embedding_dim], in the order of the views."""
        if not self._shuffle_keys:
            return _embed(self.key_encoder, views)
        step = tf.cast(self._optimizer.iterations, tf.int32)
        order = tf.random.experimental.stateless_shuffle(
            tf.range(tf.shape(views)[0]), [self._seed, step], alg="philox"
        )
        keys = _embed(self.key_encoder, tf.gather(views, order))
        return tf.gather(keys, tf.argsort(order))

    def _move_key_encoder(self) -> None:
        m = self._key_momentum
        for key, query in zip(self._key_variables, self._trainable, strict=True):
            key.assign(m * key + (1.0 - m) * query)

    def _logits(
        self, queries: tf.Tensor, keys: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """q.k+ / T, [examples], and q.k_i / T over the queue, [examples, K]."""
        positive = tf.reduce_sum(queries * keys, 1)
        negative = tf.matmul(queries, self.queue, transpose_b=True)
        return positive / self._temperature, negative / self._temperature

    def _enqueue(self, keys: tf.Tensor, labels: tf.Tensor) -> None:
        queue_size, count = self.queue.shape[0], tf.shape(keys)[0]
        places = (self.pointer + tf.range(count)) % queue_size
        self.queue.scatter_nd_update(places[:, tf.newaxis], keys)
        self.queue_labels.scatter_nd_update(places[:, tf.newaxis], labels)
        self.pointer.assign((self.pointer + count) % queue_size)

    # --- Clusters ---------------------------------------------------------------------

    def fit_clusters(self, epoch: int) -> None:
        """Finds the centers of the queue's keys by k-means (section 6.2).

        The result is a function of the queue, the seed and the epoch, to the bit.
        Clusters by labels need no centers.
        """
        if self._clusters == "labels":
            return
        # These take seconds to import, and the plain form does not need them.
        import threadpoolctl
        from sklearn import cluster

        generator = np.random.Philox(key=[self._seed, epoch])
        k_means = cluster.KMeans(
            self.centers.shape[0],
            init="k-means++",
            n_init=_NUM_CLUSTERINGS,
            random_state=np.random.RandomState(generator),
        )
        # With several threads the order of additions would vary.
        with threadpoolctl.threadpool_limits(1):
            k_means.fit(self.queue.numpy())
        self.centers.assign(k_means.cluster_centers_)

    def _is_same_cluster(self, keys: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """bool[examples, K]: which keys of the queue are in the example's cluster.

        A query has the cluster of its key k+, since clusters are made of keys.
        """
        if self._clusters == "labels":
            return self._is_same_label(labels) & self._is_labelled(labels)
        return tf.equal(self._cluster(keys)[:, tf.newaxis], self._cluster(self.queue))

    def _is_same_label(self, labels: tf.Tensor) -> tf.Tensor:
        """bool[examples, K]."""
        return tf.equal(labels[:, tf.newaxis], self.queue_labels)

    def _is_labelled(self, labels: tf.Tensor) -> tf.Tensor:
        """bool[examples, K]: whether both example and key have a label."""
        known = tf.not_equal(self.queue_labels, _NO_LABEL)
        return tf.not_equal(labels, _NO_LABEL)[:, tf.newaxis] & known

    def _cluster(self, keys: tf.Tensor) -> tf.Tensor:
        squares = tf.reduce_sum(tf.square(self.centers), 1)
        return tf.argmin(
            squares - 2.0 * tf.matmul(keys, self.centers, transpose_b=True), 1
        )

    # --- The losses of examples -------------------------------------------------------

    def measure(
        self, query_views: tf.Tensor, key_views: tf.Tensor, labels: tf.Tensor
    ) -> dict[str, np.ndarray]:
        """Computes float32[examples] by form of the loss at gamma = 0 (section 6).

        "Exactly as a training epoch, but without backpropagation": BatchNorm
        uses the batch and the queue is updated; the key encoder is not.
        Arguments are as in `update`.
        """
        measured = self._measure_graph(query_views, key_views, labels)
        return {form: values.numpy() for form, values in measured.items()}

    def _measure_step(self, query_views, key_views, labels):
        keys = self._keys(key_views)
        logits = self._logits(_embed(self.encoder, query_views), keys)
        same = self._is_same_cluster(keys, labels)
        measured = {
            form: losses.info_nce_loss(
                *logits, form=form, is_same_cluster=None if form == "plain" else same
            )
            for form in losses.INFO_NCE_FORMS
        }
        self._enqueue(keys, labels)
        return measured

    # --- State ------------------------------------------------------------------------

    @property
    def weights(self) -> tff.learning.models.ModelWeights:
        """The backbone of f_q, without its head, as NumPy arrays."""
        return tff.learning.models.ModelWeights(
            trainable=models.values(self._backbone.trainable_variables),
            non_trainable=models.values(self._backbone.non_trainable_variables),
        )

    def _named_variables(self) -> dict[str, tf.Variable]:
        return {
            **{f"query_{i:03d}": v for i, v in enumerate(self.encoder.variables)},
            **{f"key_{i:03d}": v for i, v in enumerate(self.key_encoder.variables)},
            "queue": self.queue,
            _QUEUE_LABELS: self.queue_labels,
            "pointer": self.pointer,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """Both encoders and the queue by name, to start another training from."""
        return {name: v.numpy() for name, v in self._named_variables().items()}

    def start_from(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Starts from another training's `arrays`, with a fresh optimizer (B to D).

        A queue of the same size is taken over. Of another, the newest keys are
        taken over, and the oldest entries stay random. Arrays that do not fit
        change nothing and raise a ValueError.
        """
        variables = self._named_variables()
        if set(arrays) != set(variables):
            raise ValueError(
                f"has {len(arrays)} arrays, where these encoders have {len(variables)}"
            )
        for name, variable in variables.items():
            expected = variable.shape
            if name in _OF_QUEUE:
                expected = [None, *variable.shape[1:]]
            if not tf.TensorShape(expected).is_compatible_with(arrays[name].shape):
                raise ValueError(
                    f"{name} has the shape {arrays[name].shape}, not {variable.shape}"
                )
        for name, variable in variables.items():
            if name not in (*_OF_QUEUE, "pointer"):
                variable.assign(arrays[name])
        newest = (
            np.roll(arrays[name], -int(arrays["pointer"]), 0)[-self.queue.shape[0] :]
            for name in _OF_QUEUE
        )
        self.pointer.assign(0)
        self._enqueue(*map(tf.constant, newest))


def _embed(encoder: tf.keras.Model, views: tf.Tensor) -> tf.Tensor:
    return models.unit(encoder(tf.cast(views, tf.float32), training=True))
