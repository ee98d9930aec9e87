from tff_fedss import metrics


def test_a_client_that_asks_by_id():
    # Table 1's largest set: 170 classes at d = 64.
    traffic = metrics.classifier_traffic(170, 64, asks_by_id=True)
    assert traffic.parameters == 10_880
    assert traffic.ids == 170
    assert traffic.bytes_down == 43_520
    assert traffic.bytes_up == 43_520 + 680


def test_a_client_that_takes_all_names_none():
    traffic = metrics.classifier_traffic(2028, 64, asks_by_id=False)
    assert traffic.parameters == 129_792
    assert traffic.ids == 0
    assert traffic.bytes_down == traffic.bytes_up == 519_168
