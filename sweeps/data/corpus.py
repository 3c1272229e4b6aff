"""Byte tokens of a set of text documents, split into train and validation by whole documents.

Tokenizer `bytes-eod0`: one token a byte (vocabulary 256); byte 0 ends every document and counts as no byte of text, so
bytes of text = targets that are not 0. A document may not hold byte 0 itself.

Order and split depend on the contents alone: documents are sorted by the SHA-256 of their content and equal contents
count once, so neither names nor places matter and no text can stand on both sides of the split. Splitting: walk the
documents in that order and give each to validation until it holds `share` of all bytes, skipping one that would take
it beyond twice that; if this falls short, the smallest document left goes there too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from model.errors import InputError
from sweeps.data.base import TokenData, entropy, inputs_and_targets
from sweeps.data.streams import permutation, stream
from sweeps.data.windows import WindowOrder

TOKENIZER = "bytes-eod0"
END_OF_DOCUMENT = 0
VOCAB = 256
_COUNT_CHUNK = 1 << 20  # bincount widens its input to 8 bytes a token: count in pieces to keep memory small

Documents = dict[bytes, bytes]
"""Contents by their SHA-256 digest."""


def by_content(contents: Iterable[bytes]) -> Documents:
    """Distinct non-empty contents, keyed and sorted by digest."""
    documents = {hashlib.sha256(content).digest(): content for content in contents if content}
    return dict(sorted(documents.items()))


def split(documents: Documents, share: float) -> tuple[Documents, Documents]:
    """(train, validation): whole documents, about `share` of the bytes in validation; see the module's rule."""
    target = share * sum(map(len, documents.values()))
    held: set[bytes] = set()
    size = 0
    for digest, content in documents.items():
        if size < target and size + len(content) <= 2 * target:
            held.add(digest)
            size += len(content)
    left = [digest for digest in documents if digest not in held]
    if size < target and len(left) > 1:
        held.add(min(left, key=lambda digest: (len(documents[digest]), digest)))
    train = {digest: content for digest, content in documents.items() if digest not in held}
    return train, {digest: content for digest, content in documents.items() if digest in held}


def _tokens(documents: Documents) -> np.ndarray:
    """Documents one after another, each followed by the end-of-document token: uint8 [n]."""
    end = bytes([END_OF_DOCUMENT])
    return np.frombuffer(end.join([*documents.values(), b""]), dtype=np.uint8)


def _fingerprint(train: Documents, validation: Documents) -> str:
    digest = hashlib.blake2b(TOKENIZER.encode(), digest_size=16)
    for name, side in (("train", train), ("validation", validation)):
        digest.update(f"{name} {len(side)}".encode())
        digest.update(b"".join(side))
    return digest.hexdigest()


class ByteCorpus(TokenData):
    """Text in memory, one byte a token. `where` names the files in messages and enters nothing else."""

    vocab_size = VOCAB
    tokenizer = TOKENIZER

    def __init__(self, source: str, documents: Documents, seq_len: int, share: float, where: str) -> None:
        self.source, self.seq_len = source, seq_len
        if len(documents) < 2:
            raise InputError(
                f"{where}: {len(documents)} distinct non-empty file(s), but whole files are split into train and "
                f"validation, which takes at least 2: add files or cut the text into several"
            )
        train, validation = split(documents, share)
        self.fingerprint = _fingerprint(train, validation)
        self._train, self._validation = _tokens(train), _tokens(validation)
        self.train_tokens: int = self._train.size
        self._order = WindowOrder(self.train_tokens, seq_len)
        self._validation_windows = (self._validation.size - 1) // seq_len
        if self._order.windows_per_epoch < 1 or self._validation_windows < 1:
            raise InputError(
                f"{where}: {self.train_tokens} train and {self._validation.size} validation bytes are too few for "
                f"seq_len {seq_len} (train needs {2 * seq_len}, validation {seq_len + 1}): add text or shorten seq_len"
            )
        self._where = where
        self.unigram_entropy = entropy(_frequencies(self._train))

    def batch(self, seed: int, step: int, sequences: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one step, int64 [B, T]; `sweeps.data.windows` has the order."""
        return inputs_and_targets(self._cut(self._train, self._order.starts(seed, step, sequences)))

    def validation(self, tokens: int) -> np.ndarray:
        """Windows int64 [n, T + 1] in a fixed random order, so that a few of them already sample the whole split."""
        wanted = max(tokens // self.seq_len, 1)
        if wanted > self._validation_windows:
            most = self._validation_windows * self.seq_len
            raise InputError(
                f"evaluation.tokens: {tokens} asked, but the validation split of {self._where} has {most} tokens in "
                f"windows of {self.seq_len}: ask for at most {most}, or raise data.options.validation_share"
            )
        chosen = permutation(stream("validation"), self._validation_windows)[:wanted]
        return self._cut(self._validation, chosen * self.seq_len)

    def bytes_in(self, windows: np.ndarray) -> int:
        """Targets that are bytes of text: all but the ends of documents."""
        return int(np.count_nonzero(windows[:, 1:] != END_OF_DOCUMENT))

    def _cut(self, text: np.ndarray, starts: np.ndarray) -> np.ndarray:
        return text[starts[:, None] + np.arange(self.seq_len + 1)].astype(np.int64)


def _frequencies(tokens: np.ndarray) -> np.ndarray:
    """Share of each token, float64 [V]."""
    counts = np.zeros(VOCAB, dtype=np.int64)
    for at in range(0, tokens.size, _COUNT_CHUNK):
        counts += np.bincount(tokens[at : at + _COUNT_CHUNK], minlength=VOCAB)
    return counts / tokens.size
