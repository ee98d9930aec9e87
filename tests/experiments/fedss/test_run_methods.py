import pytest

from experiments.fedss import run_config, run_methods


@pytest.mark.parametrize(
    "losses, warning",
    [((0.0, 0.0, 0.0), "in 3 of 3 rounds"), ((0.0, 0.0, 2.5), "in 2 of 3 rounds")],
)
def test_a_run_whose_spreadout_has_nothing_to_do_says_so(losses, warning):
    config = run_config.RunConfig(spreadout_margin=0.5)
    rows = [{"method": "pos_only", "round": 1}, {"method": "fedaws", "round": 0}]
    rows += [{"method": "fedaws", "spreadout_loss": loss} for loss in losses]
    text = run_methods._tell_spreadout(config, rows)
    assert warning in text and "--spreadout_margin=0.5" in text


def test_a_run_whose_spreadout_pushes_does_not():
    rows = [{"spreadout_loss": loss} for loss in (0.0, 1.0, 0.5)]
    assert run_methods._tell_spreadout(run_config.RunConfig(), rows) == ""
    assert run_methods._tell_spreadout(run_config.RunConfig(), [{"round": 1}]) == ""
