"""FedSS on text: clients learn to predict the next word among n = 10,000.

    ./run.sh python -m examples.next_word DATA_DIR

reads Penn Treebank (ptb.{train,valid,test}.txt, or ptb.zip). A client is a part of the
text, an example the four words before a word, phi an embedding and a dense layer.
Negatives are drawn by the words' popularity, with the correction that keeps the sampled
softmax unbiased. Without DATA_DIR the text is synthetic.
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms, class_sets, models, runtime, tasks, training
from tff_fedss.datasets.central import penn_treebank
from tff_fedss.datasets.federated.dataset import FederatedDataset

NUM_WORDS, CONTEXT, EXAMPLES_PER_CLIENT = 10_000, 4, 200


def made_up_text(length: int, seed: int = 0) -> np.ndarray:
    """Draws words by Zipf's law, most with one main successor: int32[length]."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, NUM_WORDS + 1)
    words = rng.choice(NUM_WORDS, length, p=popularity / popularity.sum())
    successors = np.random.default_rng(1).integers(0, 50, NUM_WORDS)
    follows = rng.random(length) < 0.7
    for k in np.flatnonzero(follows[1:]) + 1:
        words[k] = successors[words[k - 1]]
    return words.astype(np.int32)


def examples(text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns contexts int32[N, 4] and next words int32[N] of a text."""
    windows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)
    return windows[:, :-1], windows[:, -1]


def federated(train: np.ndarray, test: np.ndarray) -> FederatedDataset:
    """Gives each client a part of the text."""
    starts = range(0, len(train) - EXAMPLES_PER_CLIENT - CONTEXT, EXAMPLES_PER_CLIENT)
    clients = {
        f"stretch {k}": examples(train[start:][: EXAMPLES_PER_CLIENT + CONTEXT])
        for k, start in enumerate(starts)
    }
    return FederatedDataset.from_arrays(
        clients, examples(test), name="text", num_classes=NUM_WORDS
    )


def feature_extractor() -> tf.keras.Model:
    """Returns phi, from tokens int32[N, 4] to float32[N, 32]."""
    seeded = tf.keras.initializers.RandomUniform(-0.05, 0.05, seed=0)
    words = tf.keras.Input([CONTEXT], name="words")
    x = tf.keras.layers.Embedding(NUM_WORDS, 32, embeddings_initializer=seeded)(words)
    x = tf.keras.layers.Flatten()(x)
    x = tf.keras.layers.Dense(
        32, kernel_initializer=tf.keras.initializers.GlorotUniform(seed=1)
    )(x)
    return tf.keras.Model(words, x)


def main(data_dir: str | None = None, rounds: int = 30) -> list[float]:
    """Trains, prints top-1 on held-out text, and returns it by round."""
    if data_dir is None:
        text = made_up_text(40_000)
        train, test = text[:36_000], text[36_000:]
    else:
        text = penn_treebank.load(data_dir)
        train, test = text.train[:200_000], text.valid[:20_000]
    dataset = federated(train, test)
    task = tasks.Classification(dataset, feature_extractor)
    builder = class_sets.PopularClasses(NUM_WORDS, 100, dataset.max_positives)
    process = algorithms.build_fedss(
        feature_extractor,
        NUM_WORDS,
        algorithms.ClassSets(builder=builder),
        algorithms.ClientTraining(
            tff.learning.optimizers.build_sgdm(1.0),
            logit_scale=models.adacos_scale(NUM_WORDS),
            image_dtype=tf.int32,
        ),
    )
    runtime.set_in_process_context()
    run = training.FederatedRun("fedss", process, task, cohort_size=8, seed=0)
    top1 = [task.evaluate(run.weights)["top1"]]
    print(f"round  0  top-1 {100 * top1[0]:.1f} %")
    for round_num in range(1, rounds + 1):
        loss = run.run_round()["loss"]
        if round_num % 10 == 0 or round_num == rounds:
            top1.append(task.evaluate(run.weights)["top1"])
            print(
                f"round {round_num:2d}  top-1 {100 * top1[-1]:.1f} %  loss {loss:.3f}"
            )
    return top1


if __name__ == "__main__":
    main(*sys.argv[1:2])
