"""Byte corpora: splitting, fingerprints, the validation set, byte counts, messages."""

import hashlib
import math
from collections import Counter

import numpy as np
import pytest

from model.errors import InputError
from sweeps.data.corpus import ByteCorpus, by_content, split
from tests.tolerances import UNIGRAM_REL

SHARE = 0.05


def texts(n: int, size: int = 400) -> list[bytes]:
    """n texts of about `size` bytes in which every run of 16 bytes is unique."""
    return [b"".join(f"{i:05d}.{j:05d} ".encode() for j in range((size + i % 7 * 20) // 12)) for i in range(n)]


def corpus(contents: list[bytes], seq_len: int = 16, share: float = SHARE) -> ByteCorpus:
    return ByteCorpus("text", by_content(contents), seq_len, share, "here")


def test_no_text_stands_on_both_sides_and_none_is_lost():
    documents = by_content([*texts(200), *texts(50)])
    train, validation = split(documents, SHARE)
    assert not set(train) & set(validation)
    assert {**train, **validation} == documents
    held = sum(map(len, validation.values())) / sum(map(len, documents.values()))
    assert SHARE <= held <= 2 * SHARE


def test_no_validation_window_is_in_train():
    data = corpus(texts(300), seq_len=32)
    train = data._train.tobytes()
    windows = data.validation(data._validation_windows * 32)
    assert len(windows) > 50
    assert not [w for w in windows if bytes(w[w != 0].tolist()) in train]


@pytest.mark.parametrize("sizes", [[5000, 5000], [90_000, 100], [2000] * 3, [100] + [5000] * 10, [10] * 30 + [9000]])
def test_few_or_uneven_texts_still_split(sizes):
    contents = [hashlib.shake_128(bytes([i])).hexdigest(size // 2).encode() for i, size in enumerate(sizes)]
    train, validation = split(by_content(contents), SHARE)
    train_bytes, held_bytes = (sum(map(len, side.values())) for side in (train, validation))
    assert train_bytes >= held_bytes > 0
    if len(set(sizes)) == 1:
        assert len(validation) == 1


def test_names_and_order_do_not_matter_but_content_does():
    contents = texts(60)
    data = corpus(contents)
    assert corpus(contents[::-1]).fingerprint == data.fingerprint
    assert corpus([*contents, contents[3], b""]).fingerprint == data.fingerprint, "copies and empty texts add nothing"
    assert (corpus(contents[::-1]).batch(0, 3, 4)[0] == data.batch(0, 3, 4)[0]).all()
    changed = [contents[0] + b"!", *contents[1:]]
    others = [changed, contents[1:], [*contents, b"one more text"]]
    prints = {data.fingerprint, *(corpus(other).fingerprint for other in others)}
    assert len(prints) == 4
    assert corpus(contents, share=0.2).fingerprint not in prints, "another split is other data"


def test_targets_are_the_inputs_moved_by_one():
    data = corpus(texts(100))
    tokens, targets = data.batch(seed=1, step=2, sequences=6)
    assert tokens.shape == targets.shape == (6, 16)
    assert tokens.dtype == targets.dtype == np.int64
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    stream = data._train.tobytes()
    for row, target in zip(tokens, targets, strict=True):
        assert bytes([*row.tolist(), int(target[-1])]) in stream


def test_every_document_ends_with_the_end_token():
    contents = texts(40)
    data = corpus(contents)
    documents = [d for side in (data._train, data._validation) for d in side.tobytes().split(b"\0")[:-1]]
    assert sorted(documents) == sorted(contents)
    assert data._train[-1] == data._validation[-1] == 0


def test_validation_is_fixed_nested_and_spread():
    data = corpus(texts(2000))
    large = data.validation(data._validation_windows * 16)
    assert large.shape == (data._validation_windows, 17)
    assert len({bytes(w.astype(np.uint8)) for w in large}) == len(large), "each window once"
    assert (data.validation(160) == large[:10]).all()
    assert (data.validation(175) == large[:10]).all(), "only whole windows"
    assert len(data.validation(1)) == 1
    stream = data._validation.tobytes()
    places = [stream.index(bytes(w.astype(np.uint8))) / len(stream) for w in data.validation(40 * 16)]
    assert np.histogram(places, bins=4, range=(0, 1))[0].min() >= 1, "40 windows reach every quarter of the split"


def test_asking_for_more_validation_than_there_is_says_how_much_there_is():
    data = corpus(texts(100))
    most = data._validation_windows * 16
    assert len(data.validation(most)) == data._validation_windows
    with pytest.raises(InputError, match=rf"{most + 16} asked.*has {most} tokens.*at most {most}") as caught:
        data.validation(most + 16)
    assert "\n" not in str(caught.value)


def test_eval_fingerprint_names_the_predictions():
    data = corpus(texts(100))
    assert data.eval_fingerprint(64) == corpus(texts(100)).eval_fingerprint(79)
    assert len({data.eval_fingerprint(64), data.eval_fingerprint(80), corpus(texts(100), 32).eval_fingerprint(64)}) == 3


def test_bytes_exclude_the_ends_of_documents():
    data = corpus(texts(30))
    windows = np.array([[0, 65, 0, 66], [67, 0, 0, 0]])
    assert data.bytes_in(windows) == 2
    everything = data.validation(data._validation_windows * 16)
    assert data.bytes_in(everything) == int((everything[:, 1:] != 0).sum()) < everything[:, 1:].size


def test_unigram_entropy_is_that_of_the_train_tokens():
    data = corpus(texts(50))
    counts = Counter(data._train.tolist())
    n = sum(counts.values())
    expected = -sum(c / n * math.log(c / n) for c in counts.values())
    assert data.train_tokens == n
    assert data.unigram_entropy == pytest.approx(expected, rel=UNIGRAM_REL)
    assert data.source_loss(data.validation(16)) is None


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([], "0 distinct non-empty file"),
        ([b"alone" * 100], "1 distinct non-empty file"),
        ([b"same" * 100, b"same" * 100, b""], "1 distinct non-empty file"),
        ([b"a short text", b"another one"], "too few for seq_len 16"),
    ],
)
def test_too_little_text_is_an_error_with_a_remedy(contents, message):
    with pytest.raises(InputError, match=message) as caught:
        corpus(contents)
    assert str(caught.value).startswith("here: ")
    assert ": add " in str(caught.value)
    assert "\n" not in str(caught.value)
