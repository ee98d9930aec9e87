import pytest

from tff_fedss import metrics


def test_a_client_that_asks_by_id():
    # Table 1's largest set: 170 classes at d = 64.
    traffic = metrics.classifier_traffic(170, 64)
    assert traffic.parameters == 10_880
    assert traffic.ids == 170
    assert traffic.bytes_down == 43_520
    assert traffic.bytes_up == 43_520 + 680


def test_a_client_that_takes_all_names_none():
    traffic = metrics.classifier_traffic(2028, 64, metrics.Protocol(asks_by_id=False))
    assert traffic.parameters == 129_792
    assert traffic.ids == 0
    assert traffic.bytes_down == traffic.bytes_up == 519_168


@pytest.mark.parametrize(
    "protocol, rows, down, up",
    [
        # 10 rows of 8 numbers; a union of 30; n = 100.
        (metrics.Protocol(), None, 320, 320 + 40),
        (metrics.Protocol(requests="union"), 30, 960 + 120, 320 + 40),
        (metrics.Protocol(requests="all"), 100, 3200, 320 + 40),
        (metrics.Protocol(aggregation="secure"), 10, 320, 320 + 40),
        (metrics.Protocol(aggregation="secure", threshold=3), 10, 320, 320 + 80),
        (metrics.Protocol(requests="union", aggregation="secure"), 30, 1080, 960),
        (metrics.Protocol(True, "all", "secure", 2), 100, 3200, 3200 + 400),
    ],
)
def test_what_hides_costs_bytes(protocol, rows, down, up):
    traffic = metrics.classifier_traffic(10, 8, protocol=protocol, rows_per_client=rows)
    assert (traffic.bytes_down, traffic.bytes_up) == (down, up)
    assert traffic.parameters == 8 * (rows or 10)
