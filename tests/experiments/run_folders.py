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

_METRICS = (
    "method round loss accuracy top1 map_at_10 train_top1 num_examples num_clients "
    "classes_per_client positives_per_client rejected_clients bytes_down bytes_up "
    "unseen_map_at_10"
).split()
_SPEED = "method round round_seconds images_per_second evaluation_seconds".split()


def write_run(
    results_dir,
    cell,
    seed,
    percent,
    *,
    method=None,
    m=None,
    correction="inclusion",
    rounds=4,
    rounds_done=None,
    rounds_per_evaluation=2,
    num_classes=NUM_CLASSES,
    flags=None,
) -> pathlib.Path:
    """Writes a run of `train`, and returns its folder.

    The metric grows to `percent` round by round. Method, m and the correction are by
    default what the cell's name says. With fewer rounds_done it is not finished.
    """
    stem, _, rest = cell.partition("_m")
    if stem.endswith("_uncorrected") or rest.endswith("_uncorrected"):
        correction = "none"
    if method is None:
        (method,) = (x for x in METHODS if f"_{x}" in stem)
    if m is None and rest:
        m = int(rest.removesuffix("_uncorrected"))
    rounds_done = rounds if rounds_done is None else rounds_done
    folder = pathlib.Path(results_dir) / cell / f"seed{seed}"
    folder.mkdir(parents=True)
    all_flags = {
        "method": method,
        "dataset": "omniglot",
        "task": "classification",
        "partition": "mixed",
        "image_size": 28,
        "num_negatives": 80 if m is None else m,
        "logit_correction": correction,
        "rounds": rounds,
        "client_learning_rate": 0.03,
        "model": "small_cnn",
        "embedding_dim": EMBEDDING_DIM,
        "seed": seed,
        **(flags or {}),
    }
    (folder / "flags.txt").write_text(
        "".join(f"--{k}={v}\n" for k, v in all_flags.items())
    )
    _write_description(folder, ("/somewhere/train.py",))
    classes = {
        "fedss": POSITIVES + (m or 0),
        "neg_only": POSITIVES + (m or 0),
        "full_softmax": num_classes,
    }.get(method, POSITIVES)
    rows, speed = [], []
    for number in range(rounds_done + 1):
        row = {"method": method, "round": number}
        time = {"method": method, "round": number}
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
        if number % rounds_per_evaluation == 0 or number == rounds:
            row["top1"] = percent / 100 * number / rounds
            time["evaluation_seconds"] = 0.5
        rows.append(row)
        speed.append(time)
    (folder / "metrics.csv").write_text(_as_csv(_METRICS, rows))
    (folder / "speed.csv").write_text(_as_csv(_SPEED, speed))
    if rounds_done == rounds:
        (folder / "done.json").write_text(
            json.dumps(
                {
                    "metric": "top1",
                    "num_classes": num_classes,
                    "outcomes": {method: {"percent": percent}},
                },
                indent=2,
            )
        )
    return folder


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


def write_table(results_dir, percents=None, **options) -> None:
    """Writes a table of finished runs, by default of `PERCENTS`."""
    for cell, values in (PERCENTS if percents is None else percents).items():
        for seed, percent in enumerate(values):
            write_run(results_dir, cell, seed, percent, **options)


def _write_description(folder, command) -> None:
    """Writes run.json."""
    versions = {"tff_fedss": "0.1.0", "git_commit": "c0ffee", "tensorflow": "2.15.1"}
    machine = {"processor": "Abacus 3000", "cpus": 2, "memory_gib": 23.5, "gpus": []}
    described = {"command": command, "versions": versions, "machine": machine}
    (folder / "run.json").write_text(json.dumps(described))


def _as_csv(columns, rows) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# --- Runs of the centralized programs ---------------------------------------------

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


def write_own_run(folder, name, rows, *, flags=None, is_done=True, **values):
    """Writes a run of Partial FC, and returns its folder.

    Flags of None are left out; done.json has what the last row has, and `values`.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    flags = {**FLAGS, "rounds": len(rows) - 1, **(flags or {})}
    seed = flags["seed"]
    (folder / "flags.txt").write_text(
        "".join(f"--{k}={v}\n" for k, v in flags.items() if v is not None)
    )
    _write_description(folder, ("/somewhere/train.py", f"--seed={seed}"))
    rows = [{"method": name, "round": i, **row} for i, row in enumerate(rows)]
    columns = dict.fromkeys(column for row in rows for column in row)
    columns = list(columns) or ["method", "round"]
    (folder / "metrics.csv").write_text(_as_csv(columns, rows))
    speed = [{"method": name, "round": i} for i in range(len(rows))]
    (folder / "speed.csv").write_text(_as_csv(_SPEED, speed))
    if is_done:
        *_, metric = (c for c in rows[-1] if c not in ("method", "round"))
        (folder / "done.json").write_text(
            json.dumps({"text": "x", "metric": metric, **rows[-1], **values})
        )
    return folder


# --- What reports make of them ----------------------------------------------------


def check_figure(path):
    """There is a picture with something in it, and a PDF, and nothing else of it."""
    image = matplotlib.image.imread(path)
    assert image.shape[0] > 300 and image.shape[1] > 400
    assert image[..., :3].std() > 0.05
    assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert not list(path.parent.glob(".*"))


def unpadded(text):
    """The lines of a page, without the spaces that put its columns in line."""
    return [re.sub(" +", " ", line) for line in text.splitlines()]


def table_rows(text):
    """The lines of all tables of a page, `unpadded`, without those between."""
    return [line for line in unpadded(text) if line.startswith("| ")]
