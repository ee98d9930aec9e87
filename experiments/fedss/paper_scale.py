"""What the paper's tables would take: hours on GPUs of a stated speed, bytes moved.

    ./run.sh paper_scale                       # at 500, 1,000 and 2,000 images/s a GPU
    ./run.sh paper_scale --images_per_second=800 --gpus=1,2

No table has been run at the paper's scale: there were no such GPUs. This counts, from
the cells of `./run.sh table N --scale=paper`, the images that are trained on and
evaluated, and the bytes that clients would get and send; and divides the images by a
speed. With --measure it also measures this machine's own, by rounds of FedSS with the
network of Table 1 at 224 pixels (minutes on a CPU): what a person with a GPU would put
in the place of the stated ones. `./run.sh gpu_check` measures it, too.

Writes paper_scale.csv and paper_scale.md. What is assumed stands below the table.
"""

import dataclasses
import functools
import os
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from experiments.common import cells, config, output_files, program, table
from experiments.fedss import paper_values
from tff_fedss import algorithms, metrics, models, training
from tff_fedss.errors import InvalidInputError
from tff_fedss.metrics.communication import BYTES_PER_PARAMETER

_SIDE, _BATCH = 224, 32
# A forward pass alone, of what forward, backward and update cost.
_EVALUATION_SHARE = 1 / 3


class _Size(NamedTuple):
    """How large a data set is (4.2, 4.3, A.4).

    Attributes:
        num_classes: n.
        images_per_client: The mean of n_k.
        classes_per_client: The mean of |P_k|.
        test_images: Of an evaluation.
    """

    num_classes: int
    images_per_client: int
    classes_per_client: int
    test_images: int


_SIZES = {
    "landmarks": _Size(2_028, 130, 90, 19_526),
    "sop": _Size(11_318, 100, 20, 60_502),
    # 80 % of 14.2 million images are for training (A.4).
    "imagenet21k": _Size(21_841, 400, 20, 2_839_424),
}


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    output_dir: str = config.flag(
        "results/paper_scale", "Where paper_scale.csv and .md go."
    )
    images_per_second: tuple[str, ...] = config.flag(
        ("500", "1000", "2000"),
        "Speeds of one GPU, in training images a second: MobileNetV3-Large, 224 "
        "pixels, forward, backward and update.",
    )
    gpus: tuple[str, ...] = config.flag(("1", "4", "8"), "How many of them.")
    measure: bool = config.flag(
        False, "Measure the speed of this machine, too: minutes on a CPU."
    )
    repeats: int = config.flag(3, "Rounds that count, for --measure.", low=1)


def main(config: Config) -> None:
    """Counts, prints and writes."""
    speeds = [
        _number(text, "images_per_second", float) for text in config.images_per_second
    ]
    gpus = [_number(text, "gpus", int) for text in config.gpus]
    folder = output_files.create_folder(config.output_dir)
    measured = _measure(config.repeats) if config.measure else None
    rows = list(count())
    output_files.write_csv(folder / "paper_scale.csv", rows)
    text = as_markdown(rows, speeds, gpus, measured)
    output_files.write_text(folder / "paper_scale.md", text)
    print(f"{text}\nWritten to {folder}/paper_scale.csv and .md")


def _number(text: str, flag: str, kind: type) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise InvalidInputError(f"--{flag}={text}: expected positive numbers.")
    return value


def count() -> Iterator[dict]:
    """Yields what a run of each cell of Tables 1 to 3 works through and moves.

    Yields:
        `table`, `cell`, `seeds`, `train_images`, `test_images` (of all evaluations),
        `phi_parameters`, `class_set` (|S_k|, of the paper), and of all rounds together
        `gb_down` and `gb_up` (10^9 bytes; 0 for Centralized), of which `gb_classifier`
        are W's.
    """
    for number in ("1", "2", "3"):
        own = cells.tables_of("fedss")[number, "paper"]
        for cell in own.cells.values():
            yield _count(number, cell, len(own.seeds))


def _count(number: str, cell: cells.Cell, num_seeds: int) -> dict:
    settings = cell.settings
    size = _SIZES[settings["dataset"]]
    rounds, cohort = settings["rounds"], settings["clients_per_round"]
    clients = rounds * cohort
    evaluations = rounds // settings["rounds_per_evaluation"] + 1
    phi = _phi_parameters(settings["model"], settings["embedding_dim"])
    method = settings["method"]
    class_set = {
        "full_softmax": size.num_classes,
        "centralized": size.num_classes,
    }.get(method, size.classes_per_client)
    if method in ("fedss", "neg_only"):
        printed = paper_values.TABLES[int(number)].class_set_sizes
        class_set = printed[settings["num_negatives"]]
    down = up = classifier = 0.0
    if method != "centralized":
        traffic = metrics.classifier_traffic(
            class_set, settings["embedding_dim"], asks_by_id=method != "full_softmax"
        )
        down = clients * (BYTES_PER_PARAMETER * phi + traffic.bytes_down) / 1e9
        up = clients * (BYTES_PER_PARAMETER * phi + traffic.bytes_up) / 1e9
        classifier = clients * (traffic.bytes_down + traffic.bytes_up) / 1e9
    return {
        "table": number,
        "cell": cell.title,
        "seeds": num_seeds,
        "train_images": clients * size.images_per_client,
        "test_images": evaluations * size.test_images,
        "phi_parameters": phi,
        "class_set": class_set,
        "gb_down": down,
        "gb_up": up,
        "gb_classifier": classifier,
    }


@functools.cache
def _phi_parameters(model: str, embedding_dim: int) -> int:
    build = functools.partial(
        models.FEATURE_EXTRACTORS[model], (_SIDE, _SIDE, 3), embedding_dim
    )
    return models.model_size(build).parameters // BYTES_PER_PARAMETER


def hours(row: dict, images_per_second: float) -> float:
    """Returns the hours of a run.

    Args:
        row: Of `count`.
        images_per_second: Of all GPUs together.
    """
    images = row["train_images"] + _EVALUATION_SHARE * row["test_images"]
    return images / images_per_second / 3600


def as_markdown(
    rows: list[dict], speeds: list[float], gpus: list[int], measured: float | None
) -> str:
    """Writes the page.

    Args:
        rows: Of `count`.
        speeds: Images a second of a GPU.
        gpus: How many GPUs.
        measured: Images a second of this machine; None: not measured.
    """
    by_table: dict[str, list[dict]] = {}
    for row in rows:
        by_table.setdefault(row["table"], []).append(row)
    header = ["table", "runs", "images of a run", "images/s"]
    header += [f"hours on {n} GPU{'s' * (n > 1)}" for n in gpus]
    lines = []
    for number, own in by_table.items():
        runs = sum(row["seeds"] for row in own)
        name = f"{number}, one run"
        for speed in speeds:
            one = hours(own[0], speed)
            lines.append(
                [name, 1, f"{own[0]['train_images']:,}", f"{speed:,.0f}"]
                + [_hours(one / n) for n in gpus]
            )
        for speed in speeds:
            every = sum(row["seeds"] * hours(row, speed) for row in own)
            lines.append(
                [f"{number}, all", runs, "", f"{speed:,.0f}"]
                + [_hours(every / n) for n in gpus]
            )
    parts = [
        "# What the paper's tables would take",
        "By counting, not by running: no table has been run at the paper's scale. "
        "Speeds are assumptions: training images a second of one GPU.",
        table.as_markdown(header, lines),
    ]
    if measured is not None:
        one = by_table["1"][0]
        parts.append(
            f"This machine ({training.processor() or 'unknown processor'}, "
            f"{os.cpu_count()} CPUs), measured by FedSS rounds of Table 1's network: "
            f"{measured:.1f} images/s, {_hours(hours(one, measured))} hours a "
            f"run of Table 1, "
            f"{_hours(hours(by_table['2'][0], measured))} of Table 2, "
            f"{_hours(hours(by_table['3'][0], measured))} of Table 3."
        )
    parts += ["## Bytes of a run, all clients and rounds", _bytes_table(rows)]
    parts += [f"**Assumed.** {_ASSUMED}"]
    return "\n\n".join(parts) + "\n"


_ASSUMED = (
    "Clients have the paper's mean numbers of images and classes (4.2, 4.3, A.4). A "
    "GPU has its speed whatever the client, and K clients keep all GPUs busy: no time "
    "for reading images, for the server (a second a round would add 1.4, 0.6 and 6.9 "
    "hours) or for compiling. Tables 1 and 2 are of MobileNetV3-Large, which fits "
    "ImageNet-1k weights; Table 3 is of the network that meets the paper's shares "
    "(width 0.9), taken to be as fast. Images are evaluated as often as the cells say, "
    "at a third of the cost of training on one. A float32 is 4 bytes, nothing is "
    "compressed; phi travels both ways; ids of classes are counted. Rounds and K are "
    "the paper's; K of Table 3 is not stated, 64 is assumed."
)


def _bytes_table(rows: list[dict]) -> str:
    header = ["table", "cell", "|S_k|", "phi, parameters", "GB down", "GB up"]
    header += ["of it W, GB", "of FullSoftmax"]
    full = {row["table"]: row for row in rows if row["cell"] == "FullSoftmax"}
    return table.as_markdown(
        header,
        [
            [
                row["table"],
                row["cell"],
                f"{row['class_set']:,}",
                f"{row['phi_parameters']:,}",
                f"{row['gb_down']:,.0f}",
                f"{row['gb_up']:,.0f}",
                f"{row['gb_classifier']:,.0f}",
                f"{_moved(row) / _moved(full[row['table']]):.3f}",
            ]
            for row in rows
            if row["gb_down"] and "no logit correction" not in row["cell"]
        ],
        left=(0, 1),
    )


def _moved(row: dict) -> float:
    return row["gb_down"] + row["gb_up"]


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _measure(repeats: int) -> float:
    """Returns the images a second of FedSS rounds of two clients on this machine."""
    size = _SIZES["landmarks"]
    process = algorithms.build_fedss(
        functools.partial(models.mobilenet_v3, (_SIDE, _SIDE, 3), 64),
        size.num_classes,
        size.classes_per_client,
        num_negatives=80,
        client_optimizer=algorithms.over_one_vector(
            tff.learning.optimizers.build_sgdm(0.01)
        ),
        batch_size=_BATCH,
    )
    rng = np.random.default_rng(0)
    num_images, num_clients = 2 * _BATCH, 2
    clients = [
        {
            "data": tf.data.Dataset.from_tensor_slices(
                {
                    "image": rng.integers(
                        0, 256, (num_images, _SIDE, _SIDE, 3), np.uint8
                    ),
                    "label": rng.integers(0, 90, num_images, np.int32),
                }
            ),
            "seed": rng.integers(0, 2**31 - 1, 2).astype(np.int32),
        }
        for _ in range(num_clients)
    ]
    state, seconds = process.initialize(), []
    for k in range(repeats + 1):  # The first compiles.
        begin = time.perf_counter()
        state, _ = process.next(state, clients)
        seconds.append(time.perf_counter() - begin)
        print(f"round {k} of {repeats}: {seconds[-1]:.1f} s", flush=True)
    return num_clients * num_images / statistics.median(seconds[1:])


if __name__ == "__main__":
    program.run(main, Config())
