# %% [markdown]
# # FedSS in ten minutes
#
# A client of federated learning with n classes has images of a few of them. Federated
# sampled softmax (FedSS) sends it the rows of the classification matrix W for these
# classes, and for a few others. This page looks at the data, takes one round apart, and
# trains FedSS, NegOnly and FullSoftmax side by side. All of it runs on two CPU cores.
#
# The page is the file `docs/tutorials/fedss_in_ten_minutes.py`, which was run when the
# site was built. It opens as a notebook in Jupyter (with jupytext) and in VS Code.

# %%
import functools

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_fedss import algorithms, class_sets, losses, models, runtime, tasks, training
from tff_fedss.datasets import synthetic

runtime.set_in_process_context()
COLORS = {"fedss": "#0072B2", "neg_only": "#D55E00", "full_softmax": "#000000"}

# %% [markdown]
# ## The clients' data
#
# `synthetic.glyphs` draws handwriting: no download is needed. A class is a character.
# A client writes all of its images in one hand. Each row below is a client.

# %%
dataset = synthetic.glyphs(num_classes=500)
clients = dataset.train.client_ids
n = dataset.num_classes


def examples_of(client_id):
    """A client's images and labels as arrays."""
    data = dataset.train.create_tf_dataset_for_client(client_id).batch(10**6)
    example = next(data.as_numpy_iterator())
    return example["image"], example["label"]


figure, axes = plt.subplots(
    4, 10, figsize=(8, 3.6), num="Ten images of each of four clients"
)
for row, client_id in zip(axes, clients, strict=False):
    for axis, image, label in zip(row, *examples_of(client_id), strict=False):
        axis.imshow(255 - image[..., 0], cmap="gray")
        axis.set_title(label, fontsize=8)
        axis.set_axis_off()

sizes = [len(dataset.positives(client_id)) for client_id in clients]
print(f"{len(clients)} clients, n = {n} classes")
print(
    f"a client has {min(sizes)} to {max(sizes)} classes, {np.mean(sizes):.1f} on average"
)

# %% [markdown]
# ## The class set S_k of one client
#
# Client k has the classes P_k, its positives. It draws m others, the negatives N_k,
# without replacement, and asks the server for the rows S_k = P_k u N_k (Algorithm 1,
# lines 5 and 6). The server does not choose them, and the client needs nothing of the
# model to draw them.

# %%
m = 40
builder = class_sets.SampledClasses(n, m, dataset.max_positives)
images, labels = examples_of(clients[0])
s_k = builder.build(labels, seed=[0, 1])
keys = s_k.keys[s_k.is_asked].numpy()
is_positive = s_k.is_positive[s_k.is_asked].numpy()

print(f"|P_k| = {is_positive.sum()}, m = {m}, |S_k| = {len(keys)} of n = {n}")
print(f"P_k: {keys[is_positive].tolist()}")
print(f"N_k: {keys[~is_positive].tolist()}")

grid = np.zeros(n)
grid[keys] = np.where(is_positive, 2, 1)
plt.figure("All classes; those of P_k and N_k in color", figsize=(7, 2.8))
colors = plt.matplotlib.colors.ListedColormap(["#e8e8e8", "#56B4E9", "#D55E00"])
plt.pcolormesh(grid.reshape(-1, 50), cmap=colors, edgecolors="white", linewidth=1)
plt.gca().set_aspect("equal")
plt.axis("off")
plt.title(
    "each square a class: P_k vermillion, N_k blue, not asked for grey", fontsize=9
)

# %% [markdown]
# ## The logit correction
#
# The softmax over S_k has fewer terms than the one over all n classes. Each negative
# stands for (n - |P_k|) / m classes that the client lacks, and its logit is
# raised by the logarithm of this number. The sum of the exponentials over S_k is then
# an unbiased estimate of the sum over all classes (Eq. 3). A thousand draws show it.

# %%
rng = np.random.default_rng(0)
logits = rng.normal(size=n).astype(np.float32)
correction = float(tf.reduce_max(s_k.log_correction))
print(f"correction: log(({n} - {is_positive.sum()}) / {m}) = {correction:.3f}")


@tf.function
def sampled_sum(seed):
    """The sum of exponentials over a draw of S_k, with and without correction."""
    drawn = builder.build(labels, seed)
    o = tf.boolean_mask(tf.gather(logits, drawn.keys), drawn.is_asked)
    raised = o + tf.boolean_mask(drawn.log_correction, drawn.is_asked)
    return tf.reduce_sum(tf.exp(raised)), tf.reduce_sum(tf.exp(o))


sums = np.array([sampled_sum(tf.constant([7, draw])) for draw in range(1000)])
standard_errors = sums.std(0, ddof=1) / np.sqrt(len(sums))
print(f"sum over all n classes:        {np.exp(logits).sum():.1f}")
print(
    f"mean over S_k, corrected:      {sums[:, 0].mean():.1f} +- {standard_errors[0]:.1f}"
)
print(
    f"mean over S_k, not corrected:  {sums[:, 1].mean():.1f} +- {standard_errors[1]:.1f}"
)

# %% [markdown]
# ## A round, taken apart
#
# One round with one client, by hand. The model is phi, which turns an image into a
# vector of d numbers, and W, [n, d], with a row for each class.
#
# **1. The server gathers** the rows that the client asks for. W itself stays there.

# %%
feature_extractor_fn = functools.partial(models.small_cnn, dataset.image_shape)
phi = feature_extractor_fn()
w = models.initial_classifier(n, phi.output_shape[-1], [0, 0])
rows = tf.gather(w, keys)
print(f"W: {w.shape}, sent to the client: {rows.shape}")

# %% [markdown]
# **2. The client trains.** Here it takes a single step of gradient descent on all of its
# images. Labels become positions in S_k; logits are cosines times 20.

# %%
eta = 0.1
targets = np.searchsorted(keys, labels)
variables = phi.trainable_variables
with tf.GradientTape() as tape:
    tape.watch(rows)
    features = phi(tf.cast(images, tf.float32), training=True)
    o = models.cosine_logits(features, rows, scale=20.0)
    is_member = tf.ones(len(keys), tf.bool)
    loss = losses.fedss_loss(o, targets, is_member, s_k.log_correction[: len(keys)])
    loss = tf.reduce_mean(loss)
*phi_gradients, rows_gradient = tape.gradient(loss, [*variables, rows])
phi_delta = [-eta * gradient for gradient in phi_gradients]
rows_delta = -eta * rows_gradient
print(f"loss {loss:.3f} on {len(labels)} images of {is_positive.sum()} classes")

# %% [markdown]
# **3. The client sends back** the change of phi, which is dense, and the change of its
# rows with their classes, which is sparse. The figure has the part of each change in
# the direction of the client's mean feature. Rows of its own classes move towards its
# images, rows of the others away from them: the server can read P_k from that, which
# [privacy](../privacy.md) measures.

# %%
mean_feature = models.unit(tf.reduce_mean(models.unit(features), axis=0, keepdims=True))
towards = tf.reduce_sum(rows_delta * mean_feature, axis=1).numpy()
plt.figure("Change of each row towards the images of the client", figsize=(7, 2.6))
for name, mask, color in (
    ("P_k", is_positive, "#D55E00"),
    ("N_k", ~is_positive, "#56B4E9"),
):
    plt.bar(keys[mask], towards[mask], width=3, color=color, label=name)
    print(f"{name}: {np.sum(towards[mask] > 0)} of {mask.sum()} rows move towards them")
plt.yscale("symlog", linthresh=1e-3)
plt.axhline(0, color="black", linewidth=0.6)
plt.xlim(-3, n + 3)
plt.xlabel("class")
plt.ylabel("change of its row")
plt.legend(frameon=False, ncols=2)

# %% [markdown]
# **4. The server scatters** the rows into place, and adds phi's change to phi. With
# several clients it takes their mean first, weighted by their numbers of images, and
# adds momentum.

# %%
new_w = tf.tensor_scatter_nd_add(w, keys[:, np.newaxis], rows_delta)
num_changed = np.count_nonzero(np.any(new_w != w, axis=1))
print(f"{num_changed} of the {n} rows of W have changed")

# %% [markdown]
# The library's process does the same. For the comparison it gets a batch that holds all
# of the client's images, and the draw of S_k from above.


# %%
class AsAbove(class_sets.SampledClasses):
    """The draw of above, whatever the round's seed says."""

    def build(self, labels, seed, permanent_seed=None):
        """Returns it."""
        return super().build(labels, tf.constant([0, 1]))


process = algorithms.build_fedss(
    feature_extractor_fn,
    n,
    algorithms.ClassSets(builder=AsAbove(n, m, dataset.max_positives)),
    algorithms.ClientTraining(
        tff.learning.optimizers.build_sgdm(eta), batch_size=len(labels)
    ),
)
state = process.initialize()
client = {"data": dataset.client_examples(clients[0], [0, 0]), "seed": [0, 0]}
after, round_metrics = process.next(state, [client])
difference = np.abs(after.classifier - new_w).max()
print(f"W differs by at most {difference:.1e} from the one made by hand,")
print(f"the loss by {abs(round_metrics['loss'] - loss):.1e}")

# %% [markdown]
# ## Curves
#
# Now 30 rounds with 16 clients each, by three methods. FullSoftmax sends all of W.
# NegOnly has the same S_k as FedSS, but compares an image's class with the negatives
# alone (Eq. 7). All begin with the same phi, which was trained on public images of
# other classes. NegOnly has a lower learning rate than the others: at theirs it learns
# more slowly still. (Its rate was the best of three on these test images, the others'
# of two.)

# %%
ROUNDS, EVERY = 30, 5
task = tasks.Classification(dataset, feature_extractor_fn)
phi = feature_extractor_fn()
training.warm_start(phi, dataset, num_epochs=4, seed=0)
TITLES = {"fedss": "FedSS", "neg_only": "NegOnly", "full_softmax": "FullSoftmax"}
RATES = {"fedss": 0.03, "neg_only": 0.01, "full_softmax": 0.03}
curves, runs = {}, {}
for method in TITLES:
    drawing = algorithms.ClassSets(dataset.max_positives, num_negatives=m)
    process = algorithms.build_fedss(
        feature_extractor_fn,
        n,
        algorithms.ClassSets() if method == "full_softmax" else drawing,
        algorithms.ClientTraining(tff.learning.optimizers.build_sgdm(RATES[method])),
        method=method,
    )
    run = training.FederatedRun(method, process, task, cohort_size=16, seed=0)
    run.set_feature_extractor(phi.get_weights())
    curves[method] = [task.evaluate(run.weights)["top1"]]
    for round_num in range(1, ROUNDS + 1):
        runs[method] = run.run_round()
        if round_num % EVERY == 0:
            curves[method].append(task.evaluate(run.weights)["top1"])

plt.figure("Top-1 by round of the three methods", figsize=(6, 3.6))
for method, curve in curves.items():
    rounds = EVERY * np.arange(len(curve))
    percent = 100 * np.array(curve)
    plt.plot(rounds, percent, "o-", color=COLORS[method], label=TITLES[method])
plt.axhline(100 * task.chance, linestyle=":", color="grey", label="chance")
plt.xlabel("round")
plt.ylabel("top-1 on held-out images (%)")
plt.legend(frameon=False)
for method, curve in curves.items():
    print(f"{TITLES[method]:12} {100 * curve[-1]:.1f} % after {ROUNDS} rounds")
print(f"{'chance':12} {100 * task.chance:.1f} %")

# %% [markdown]
# This is one seed, and 30 rounds do not reach the end of any curve. Runs over three
# seeds are in [the results](../results/README.md).
#
# ## What travels
#
# Bytes of one client in one round, without compression. A client of FedSS also names
# the classes that it asks for.

# %%
phi_bytes = sum(4 * v.shape.num_elements() for v in phi.trainable_variables)
print(f"{'':12} {'rows of W':>10} {'down':>9} {'up':>9}   of which phi")
for method, last in runs.items():
    print(
        f"{TITLES[method]:12} {last['classes_per_client']:10.1f}"
        f" {last['bytes_down'] / 1000:6.0f} kB {last['bytes_up'] / 1000:6.0f} kB"
        f" {phi_bytes / 1000:9.0f} kB"
    )

# %% [markdown]
# phi is small here, and n is 500. W grows with the number of classes, S_k does not: the
# figure counts what a client of this round would download with more classes.

# %%
dim = phi.output_shape[-1]
plt.figure("Download of a client by the number of classes", figsize=(6, 3.4))
many = np.logspace(2.7, 6, 50)
of_fedss = np.full_like(many, runs["fedss"]["bytes_down"])
plt.loglog(
    many, (phi_bytes + 4 * dim * many) / 1e6, color="#000000", label="FullSoftmax"
)
plt.loglog(many, of_fedss / 1e6, color=COLORS["fedss"], label=f"FedSS, m = {m}")
plt.xlabel("number of classes n")
plt.ylabel("MB down, one client, one round")
plt.legend(frameon=False)

# %% [markdown]
# ## Where to go from here
#
# - [Your own images, from a folder to a neighbours page](own_images_to_neighbours.py).
# - [The library](../library.md): aggregators, losses, samplers, optimizers.
# - [Algorithm 1 as a page of NumPy](../../examples/fedss_numpy.py).
# - [The paper's tables](../tables.md), and [the results of its claims](../results/README.md).
