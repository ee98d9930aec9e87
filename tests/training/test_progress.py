from tff_fedss.training import Progress, progress


def test_a_log_gets_lines_with_loss_accuracy_and_eta(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with Progress(["fedss", "full_softmax"], 4) as bars:
        now[0] = 6.0
        bars.update("fedss", 1, {"loss": 2.5})
        assert capsys.readouterr().err == ""  # Too early for a line.
        now[0] = 12.0
        bars.update("full_softmax", 1, {"loss": 2.25})
        assert capsys.readouterr().err == (
            # Two of eight rounds took 12 s: six more take 36 s.
            "full_softmax  round 1/4  loss 2.250  ETA 00:36\n"
        )
        bars.update("fedss", 2, {"loss": 1.5, "top1": 0.125})
        line = capsys.readouterr().err
        assert line == "fedss         round 2/4  loss 1.500  top-1 12.5 %  ETA 00:20\n"


def test_accuracy_is_shown_until_top1_is_known(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    bars = Progress(["a"], 3)
    bars.update("a", 1, {"accuracy": 0.5})
    assert "acc 50.0 %" in capsys.readouterr().err
    bars.update("a", 2, {"accuracy": 0.5, "top1": 0.25})
    line = capsys.readouterr().err
    assert "top-1 25.0 %" in line and "acc" not in line
    bars.update("a", 3, {"accuracy": 0.5})
    assert "top-1 25.0 % (round 2)" in capsys.readouterr().err


def test_a_metric_says_of_which_round_it_is(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    bars = Progress(
        ["a"],
        9,
        metric="perplexity",
        metric_title="perplexity",
        format_metric="{:.1f}".format,
    )
    lines = []
    for done, metrics in enumerate(
        [{"perplexity": 99.0}, {"loss": 4.0}, {"loss": 3.0, "perplexity": 20.0}, {}]
    ):
        bars.update("a", done, metrics)
        lines.append(capsys.readouterr().err)
    assert "perplexity 99.0  ETA" in lines[0]
    assert "round 1/9  perplexity 99.0 (round 0)  loss 4.000" in lines[1]
    assert "perplexity 20.0  loss 3.000" in lines[2]
    assert "perplexity 20.0 (round 2)" in lines[3]


def test_rejected_clients_and_the_end_are_shown(capsys, monkeypatch):
    Progress(["a"], 4).update("a", 4, {"loss": 1.0})
    assert "round 4/4" in capsys.readouterr().err
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    bars = Progress(["a"], 3)
    bars.update("a", 1, {"loss": 1.0, "rejected_clients": 2})
    assert "rejected clients 2" in capsys.readouterr().err
    bars.update("a", 2, {"loss": 1.0, "rejected_clients": 0})
    assert "rejected" not in capsys.readouterr().err


def test_a_terminal_gets_bars(capsys, monkeypatch):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with Progress(["fedss", "full_softmax"], 4) as bars:
        bars.update("fedss", 4, {"loss": 0.125})
    text = capsys.readouterr().err
    assert "fedss       : 100%" in text and "full_softmax:   0%" in text
    assert "loss=0.125" in text
