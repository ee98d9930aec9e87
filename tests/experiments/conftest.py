import signal

import pytest

from experiments.common import program
from experiments.fedss import train


@pytest.fixture
def run_train(capsys):
    """Runs the program in this process: flags -> (exit code, stdout, stderr)."""

    def run(*flags):
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as end:
            program.run(train.main, train.Config(), ["train", *flags])
        signal.signal(signal.SIGTERM, handler)
        return (end.value.code or 0, *capsys.readouterr())

    return run
