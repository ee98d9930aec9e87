import csv

import pytest

from experiments import partial_fc_report
from tff_fedss.errors import InvalidInputError

COLUMNS = "method,round,steps,loss,tar_at_far,top1,ca_pcc,trained_share"


def write_run(folder, name, tar, ca_pcc):
    folder.mkdir(parents=True)
    rows = [COLUMNS, f"{name},0,,,0.01,,,"]
    rows.append(f"{name},1,50,4.0,,,{ca_pcc / 2},1.0")
    rows.append(f"{name},2,100,3.0,{tar},,{ca_pcc},1.0")
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")


def test_seeds_are_put_together(tmp_path, capsys):
    runs = tmp_path / "runs"
    write_run(runs / "pprn_0.1" / "seed0", "pprn_0.1", 0.5, 0.4)
    write_run(runs / "pprn_0.1" / "seed1", "pprn_0.1", 0.7, 0.6)
    write_run(runs / "full", "full", 0.8, 0.7)
    partial_fc_report.write(runs, tmp_path / "out", "omniglot")
    lines = (tmp_path / "out" / "omniglot.md").read_text().splitlines()
    assert lines[0].startswith("| run | seeds | steps | TAR@FAR=0.001 | CA_pcc |")
    assert lines[2].startswith("| full | 1 | 100 | 0.800 | 0.700 |")
    assert lines[3].startswith("| pprn_0.1 | 2 | 100 | 0.600 ± 0.141 | 0.500 ± 0.141")
    assert lines[3] in capsys.readouterr().out
    with (tmp_path / "out" / "omniglot.csv").open() as file:
        rows = list(csv.DictReader(file))
    curve = [(r["steps"], r["ca_pcc"]) for r in rows if r["run"] == "full"]
    assert curve == [("0.0", ""), ("50.0", "0.35"), ("100.0", "0.7")]
    assert (tmp_path / "out" / "omniglot.png").stat().st_size > 1000


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"holds no RUN/metrics.csv"):
        partial_fc_report.write(tmp_path, tmp_path / "out", "omniglot")
    write_run(tmp_path / "full", "full", 0.8, 0.7)
    path = tmp_path / "full" / "metrics.csv"
    path.write_text(path.read_text().replace("3.0", "three"))
    with pytest.raises(InvalidInputError, match="metrics.csv is damaged"):
        partial_fc_report.write(tmp_path, tmp_path / "out", "omniglot")
