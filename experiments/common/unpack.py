"""Lays published runs out in folders again, for a table to go on from.

    ./run.sh unpack --results_dir=docs/results/table1_mini \
        --output_dir=results/table1_mini
    ./run.sh table 1 --scale=mini --data_dir=OMNIGLOT --seeds=0,1,2,3

reads what `./run.sh pack` has written, and writes CELL/seedK/ with flags.txt, run.json,
data.json, done.json, metrics.csv and speed.csv for each run. To `./run.sh table` these
are done: it runs what is missing, more seeds or cells, and makes its page of all of
them. Weights are not packed, and so do not come back. Nothing is replaced.
"""

import csv
import dataclasses
import io
import json
import os
import pathlib

from experiments.common import archive, config, output_files, program
from tff_fedss import files
from tff_fedss.errors import InvalidInputError
from tff_fedss.training import run_files


def unpack(results_dir: str | os.PathLike, output_dir: str | os.PathLike) -> int:
    """Unpacks the runs of a table, see `archive`.

    Args:
        results_dir: Holds the archive.
        output_dir: Where the folders of the runs go.

    Returns:
        How many runs there are.

    Raises:
        InvalidInputError: If there is no archive, it is damaged, it names a place
            outside of the folder, a folder on the way is a link, or a folder of a run
            is there already. Nothing is written then.
        RunStoppedError: If a file cannot be read or written.
    """
    output_files.check_named(results_dir=results_dir, output_dir=output_dir)
    results_dir, output_dir = pathlib.Path(results_dir), pathlib.Path(output_dir)
    if not archive.is_in(results_dir):
        raise InvalidInputError(
            f"--results_dir={results_dir} holds no {archive.CSV} and {archive.JSON}, "
            "as ./run.sh pack writes them."
        )
    runs = {
        output_dir / cell / f"seed{seed}": content
        for cell, by_seed in archive.read_contents(results_dir).items()
        for seed, content in by_seed.items()
    }
    for folder in runs:
        for parent in (folder, *folder.parents):
            if parent == output_dir:
                break
            if parent.is_symlink():
                raise InvalidInputError(
                    f"--output_dir={output_dir}: {parent} is a link. Name another "
                    "folder, or take it away."
                )
        if os.path.lexists(folder):
            raise InvalidInputError(
                f"--output_dir={output_dir}: {folder} is there already. Name another "
                "folder, or take it away."
            )
    for folder, content in runs.items():
        output_files.create_folder(folder)
        # done.json last: what is half written is not taken for done.
        for name, text in sorted(
            _texts(content).items(), key=lambda item: item[0] == run_files.DONE
        ):
            files.write(folder / name, text.encode("utf-8"))
    return len(runs)


def _texts(content: archive.Content) -> dict[str, str]:
    """The files of a run."""
    texts = {}
    for name, document in content.documents.items():
        if name == run_files.FLAGS:
            texts[name] = run_files.as_flagfile(document)
        else:
            texts[name] = json.dumps(document, indent=2) + "\n"
    for name, table in content.tables.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(cells for _, cells in table.rows)
        texts[name] = text.getvalue()
    return texts


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    results_dir: str = config.flag(
        None, "Where runs.csv.gz and runs.json are.", needed="DIR is needed."
    )
    output_dir: str = config.flag(
        None, "Where CELL/seedK/ of each run goes.", needed="DIR is needed."
    )


def main(config: Config) -> None:
    """Unpacks, and says what."""
    count = unpack(config.results_dir, config.output_dir)
    print(f"{count} runs of {config.results_dir} are in {config.output_dir}.")


if __name__ == "__main__":
    program.run(main, Config())
