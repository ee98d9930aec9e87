"""Progress bars: on a terminal only."""

import io

from tff_fedss import progress


def test_a_log_has_no_bars(capsys):
    assert list(progress.bar("Reading", items=range(3))) == [0, 1, 2]
    with progress.bar("Reading", 3) as bar:
        bar.update(3)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_them():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    with progress.bar("Copying", 4000, "B", delay=0, file=terminal) as bar:
        bar.update(2000)
        bar.refresh()
    assert "Copying:  50%" in terminal.getvalue()
    assert "2.00k/4.00k" in terminal.getvalue()
