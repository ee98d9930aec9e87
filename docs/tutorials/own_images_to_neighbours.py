# %% [markdown]
# # From a folder of images to a neighbours page
#
# A folder of images becomes clients, a run of FedSS, an encoder, and a page that shows
# which images the encoder takes to be alike. Each step is a command of `./run.sh`.
# [Your own images](../own_images.md) says what the commands take.
#
# The page is the file `docs/tutorials/own_images_to_neighbours.py`, which was run when
# the site was built.

# %%
import os
import pathlib
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from PIL import Image

from tff_fedss.datasets import synthetic

MODULES = {
    "train": "experiments.fedss.train",
    "describe": "experiments.fedss.describe",
    **{
        name: f"experiments.encoders.{name}"
        for name in ("export", "embed", "evaluate", "neighbours")
    },
}


def run_sh(command, *flags):
    """Runs `./run.sh COMMAND FLAGS`, in the environment of this page."""
    print(f"$ ./run.sh {command}", *(flag.replace(str(work), "WORK") for flag in flags))
    done = subprocess.run(
        [sys.executable, "-P", "-m", MODULES[command], *flags],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    print(done.stdout.replace(str(work), "WORK"))


# %% [markdown]
# ## The images
#
# A folder for each class. Here they are drawn: 100 characters to train on, and 20 other
# characters that the training never sees. Put the path of your own images into `known`,
# and skip this cell.

# %%
work = pathlib.Path(tempfile.mkdtemp())
known, new = work / "known", work / "new"
glyphs = synthetic.glyphs(num_public_classes=120)
for number, example in enumerate(glyphs.public_examples().as_numpy_iterator()):
    label = int(example["label"])
    folder = (known if label < 100 else new) / f"character {label:03}"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(example["image"][..., 0]).save(folder / f"{number:04}.png")

figure, axes = plt.subplots(
    3, 10, figsize=(8, 2.6), num="Ten images of each of three classes"
)
for row, folder in zip(axes, sorted(known.iterdir()), strict=False):
    for axis, path in zip(row, sorted(folder.iterdir()), strict=False):
        axis.imshow(Image.open(path), cmap="gray_r")
        axis.set_axis_off()
for folder in (known, new):
    num_classes = len(list(folder.iterdir()))
    print(
        f"{folder.name}: {len(list(folder.rglob('*.png')))} images, {num_classes} classes"
    )

# %% [markdown]
# ## What would be trained on
#
# `describe` checks every image. The partition cuts each class over 50 clients, in
# proportions drawn from a Dirichlet distribution: most clients get few images of most
# classes. A part of each class's images is held out.

# %%
data = [
    "--dataset=images",
    f"--data_dir={known}",
    "--image_size=28",
    "--partition=dirichlet:alpha=0.1,clients=50",
]
run_sh("describe", *data, f"--results_dir={work / 'described'}")

# %% [markdown]
# ## FedSS
#
# A client gets the rows of W for its own classes and for 20 others.

# %%
results = work / "run"
run_sh(
    "train",
    *data,
    "--num_negatives=20",
    "--rounds=60",
    "--rounds_per_evaluation=10",
    f"--results_dir={results}",
)
rows = pd.read_csv(results / "metrics.csv").dropna(subset="top1")
plt.figure("Top-1 on held-out images by round", figsize=(5, 3))
plt.plot(rows["round"], 100 * rows["top1"], "o-", color="#0072B2", label="FedSS")
plt.axhline(1, linestyle=":", color="grey", label="chance, 1 of 100 classes")
plt.xlabel("round")
plt.ylabel("top-1 on held-out images (%)")
plt.legend(frameon=False)

# %% [markdown]
# ## The encoder
#
# `export` writes phi as a file that loads without this project. `--format` also makes a
# SavedModel, TFLite or ONNX of it.

# %%
encoder = work / "encoder.keras"
run_sh("export", f"--results_dir={results}", f"--output={encoder}")

# %% [markdown]
# ## Vectors of new images
#
# From here on the images are of the 20 classes that the training has not seen. No
# classifier takes part: images are compared by their vectors.

# %%
table = work / "vectors.parquet"
of_new = [f"--model={encoder}", f"--images={new}"]
run_sh("embed", *of_new, f"--output={table}")
run_sh("evaluate", *of_new, f"--vectors={table}")

# %% [markdown]
# ## The neighbours page
#
# One HTML file, which needs no network: each query with its nearest images, wrong ones
# framed, the worst queries first. [Here it is](neighbours/index.html).

# %%
run_sh("neighbours", *of_new, f"--vectors={table}", "--output=neighbours")

# %% [markdown]
# The same from the file of vectors, for six images: left the query, then its eight
# nearest images. A red x marks one of another class.

# %%
embedded = pd.read_parquet(table)
matrix = np.stack(embedded["vector"])
cosines = matrix @ matrix.T
np.fill_diagonal(cosines, -1)
nearest = np.argsort(-cosines, axis=1)[:, :8]
figure, axes = plt.subplots(
    6, 9, figsize=(7, 5), num="Six images and the nearest images of each"
)
for row, query in zip(axes, range(0, len(embedded), len(embedded) // 6), strict=False):
    for axis, place in zip(row, [query, *nearest[query]], strict=True):
        axis.imshow(Image.open(new / embedded["path"][place]), cmap="gray_r")
        axis.set_axis_off()
        if embedded["label"][place] != embedded["label"][query]:
            axis.set_title("x", color="#D55E00", fontsize=9, pad=1)

labels = embedded["label"].to_numpy()
same = np.mean(labels[nearest[:, 0]] == labels)
print(f"the nearest image is of the same class: {same:.1%} of {len(labels)} images")
print(f"chance: {(len(labels) // 20 - 1) / (len(labels) - 1):.1%}")
