"""The programs of examples/ that no other test runs."""

from examples import next_word


def test_words_are_learned_from_their_contexts(capsys):
    before, after = next_word.main(rounds=10)
    # The most popular of 10,000 words is a tenth of the text that is made up.
    assert before < 0.02 and after > 0.1
    assert "round 10  top-1" in capsys.readouterr().out
