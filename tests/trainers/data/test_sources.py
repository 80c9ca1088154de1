from datasets import Dataset

from trainers.data.sources import fingerprint_of


def test_the_fingerprint_of_a_data_set_follows_its_content() -> None:
    one, same, other = (Dataset.from_dict({"text": [text]}) for text in ("a", "a", "b"))
    assert fingerprint_of(one) == fingerprint_of(same) != fingerprint_of(other)
