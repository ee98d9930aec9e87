"""FedSS in TFF's own program loop, `tff.learning.programs.train_model`.

    ./run.sh python -m examples.tff_program /tmp/program

trains on glyphs in this process, writes a checkpoint after each round, metrics as a CSV
file and for TensorBoard, and the model at the end. The same command resumes it.
"""

import asyncio
import functools
import pathlib
import sys

import tensorflow_federated as tff

from tff_fedss import algorithms, models, runtime, tasks, training
from tff_fedss.datasets import synthetic


async def train(folder: pathlib.Path, rounds: int, cohort_size: int = 4) -> None:
    """Trains up to a round, from the folder's last checkpoint."""
    dataset = synthetic.glyphs(40, image_size=14)
    phi_fn = functools.partial(models.small_cnn, dataset.image_shape, 16)
    task = tasks.Classification(dataset, phi_fn)
    process = training.for_programs(
        algorithms.build_fedss(
            phi_fn,
            dataset.num_classes,
            algorithms.ClassSets(dataset.max_positives, num_negatives=5),
        )
    )
    await tff.learning.programs.train_model(
        train_process=process,
        train_data_source=training.DataSource(process, task, seed=0),
        train_per_round_clients=cohort_size,
        train_total_rounds=rounds,
        program_state_manager=tff.program.FileProgramStateManager(folder / "states"),
        model_output_manager=tff.program.SavedModelFileReleaseManager(
            folder / "models"
        ),
        train_metrics_manager=tff.program.GroupingReleaseManager(
            [
                tff.program.CSVFileReleaseManager(folder / "metrics.csv"),
                tff.program.TensorBoardReleaseManager(folder / "tensorboard"),
            ]
        ),
        evaluation_manager=None,
        evaluation_periodicity=rounds,
    )


def main(folder: str, rounds: int = 5) -> None:
    """Installs the asynchronous in-process context, and trains."""
    context = tff.program.NativeFederatedContext(runtime.AsyncInProcessContext())
    tff.framework.set_default_context(context)
    asyncio.run(train(pathlib.Path(folder), rounds))


if __name__ == "__main__":
    main(sys.argv[1])
