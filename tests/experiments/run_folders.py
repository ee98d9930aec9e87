"""Makes results folders as the programs leave them, with any numbers."""

import csv
import io
import json
import pathlib
import re

import matplotlib.image

NUM_CLASSES = 659
POSITIVES = 19.6  # the mean |P_k|; it rounds to 20
EMBEDDING_DIM = 64
PHI_PARAMETERS = 50_000

METHODS = ("fedss", "neg_only", "pos_only", "fedaws", "full_softmax", "centralized")

# Finished cells of a Table 1 in the paper's order, three seeds each.
PERCENTS = {
    "omniglot_fedss_m5": (50.0, 52.0, 54.0),
    "omniglot_fedss_m20": (55.0, 55.5, 57.0),
    "omniglot_fedss_m80": (58.0, 58.5, 59.0),
    "omniglot_neg_only_m5": (7.0, 11.0, 4.0),
    "omniglot_neg_only_m20": (21.0, 22.0, 23.0),
    "omniglot_neg_only_m80": (26.0, 26.0, 26.0),
    "omniglot_pos_only": (40.0, 41.0, 43.0),
    "omniglot_fedaws": (42.0, 41.0, 45.0),
    "omniglot_full_softmax": (60.0, 61.5, 61.0),
    "omniglot_centralized": (65.0, 64.0, 63.0),
}
# Flags that Partial FC keeps of each run, with some values.
FLAGS = {
    "dataset": "omniglot",
    "data_dir": "omniglot",
    "seed": 0,
    "sample_rate": 0.1,
    "sampling": "pprn",
    "rounds": 2,
    "learning_rate": 0.001,
}


def write_table(results_dir) -> None:
    """Writes a table of finished runs, those of `PERCENTS`."""
    for cell, values in PERCENTS.items():
        for seed, percent in enumerate(values):
            write_run(results_dir, cell, seed, percent)


def write_run(
    results_dir, cell, seed, percent, *, rounds_done=None, flags=None
) -> pathlib.Path:
    """Writes a run of `train`, and returns its folder.

    The metric grows to `percent` round by round. Method, m and the correction are what
    the cell's name says, if not the flags. With fewer rounds_done it is not finished.
    """
    stem, _, rest = cell.partition("_m")
    uncorrected = "_uncorrected"
    flags = {
        "method": next((x for x in METHODS if f"_{x}" in stem), None),
        "dataset": "omniglot",
        "task": "classification",
        "partition": "mixed",
        "image_size": 28,
        "num_negatives": rest.removesuffix(uncorrected) or 80,
        "logit_correction": "none" if cell.endswith(uncorrected) else "inclusion",
        "rounds": 4,
        "client_learning_rate": 0.03,
        "model": "small_cnn",
        "embedding_dim": EMBEDDING_DIM,
        "seed": seed,
        **(flags or {}),
    }
    method, rounds = flags["method"], int(flags["rounds"])
    classes = {"full_softmax": NUM_CLASSES}.get(method, POSITIVES)
    if method in ("fedss", "neg_only"):
        classes += int(flags["num_negatives"])
    rows, speed = [], []
    for number in range(1 + (rounds if rounds_done is None else rounds_done)):
        row, time = {}, {}
        if number:
            row |= {"loss": 1 / number, "num_examples": 100}
            time |= {"round_seconds": 1.5}
            if method != "centralized":
                row |= {
                    "num_clients": 3,
                    "classes_per_client": classes,
                    "positives_per_client": POSITIVES,
                    "bytes_down": 4 * (PHI_PARAMETERS + classes * EMBEDDING_DIM),
                }
        if number % 2 == 0 or number == rounds:
            row["top1"] = percent / 100 * number / rounds
            time["evaluation_seconds"] = 0.5
        rows.append(row)
        speed.append(time)
    done = {"num_classes": NUM_CLASSES, "outcomes": {method: {"percent": percent}}}
    folder = pathlib.Path(results_dir) / cell / f"seed{seed}"
    is_done = len(rows) == rounds + 1
    return _write(folder, method, rows, speed, flags, done if is_done else None)


def write_own_run(folder, name, rows, *, flags=None, **values):
    """Writes a run of Partial FC, and returns its folder.

    Flags of None are left out; done.json has what the last row has, and `values`.
    """
    flags = {**FLAGS, "rounds": len(rows) - 1, **(flags or {})}
    done = {"text": "x", **rows[-1], **values}
    return _write(pathlib.Path(folder), name, rows, [{}] * len(rows), flags, done)


def _write(folder, name, rows, speed, flags, done) -> pathlib.Path:
    folder.mkdir(parents=True)
    (folder / "flags.txt").write_text(
        "".join(f"--{k}={v}\n" for k, v in flags.items() if v is not None)
    )
    versions = {"tff_fedss": "0.1.0", "git_commit": "c0ffee", "tensorflow": "2.15.1"}
    machine = {"processor": "Abacus 3000", "cpus": 2, "memory_gib": 23.5, "gpus": []}
    command = ["/somewhere/train.py", f"--seed={flags['seed']}"]
    described = {"command": command, "versions": versions, "machine": machine}
    (folder / "run.json").write_text(json.dumps(described))
    columns = dict.fromkeys(column for row in rows for column in row)
    for file, some, known in (
        ("metrics.csv", rows, columns),
        ("speed.csv", speed, ["round_seconds", "evaluation_seconds"]),
    ):
        text = io.StringIO()
        writer = csv.DictWriter(text, ["method", "round", *known], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"method": name, "round": i, **r} for i, r in enumerate(some))
        (folder / file).write_text(text.getvalue())
    if done is not None:
        *_, metric = rows[-1]
        (folder / "done.json").write_text(json.dumps({"metric": metric, **done}))
    return folder


# --- What reports make of them ----------------------------------------------------


def check_figure(path):
    """There is a picture with something in it, and a PDF, and nothing else of it."""
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 300 and image.shape[1] > 400
    assert image[..., :3].std() > 0.05
    assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert not list(path.parent.glob(".*"))


def table_rows(text):
    """The lines of all tables of a page, without the spaces that align columns."""
    return [re.sub(" +", " ", x) for x in text.splitlines() if x.startswith("| ")]
