"""Small versions of published data sets, in the official format."""

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asfedbridge.data.sources import cifar

Forge = Callable[..., dict[str, bytes]]


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def pickled(batch: dict[bytes, Any]) -> bytes:
    # Protocol 2 with the old names of NumPy's modules, as published.
    return pickle.dumps(batch, protocol=2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> Forge:
    """Makes a small CIFAR, writes it to ``root`` if given, and puts its checksums into ``RELEASES``."""

    def make(name: str, root: Path | None = None, each: int = 20, url: str = "", **replaced: bytes) -> dict[str, bytes]:
        release = cifar.RELEASES[name]
        count = 100 if name == "cifar100" else 10
        rng = np.random.default_rng(0)
        contents: dict[str, bytes] = {}
        for file in (*release.train, *release.test):
            batch = {
                b"data": rng.integers(0, 256, (each * count // 10, 3072), dtype=np.uint8),
                release.labels: [i % count for i in range(each * count // 10)],
                b"filenames": [b"x.png"] * (each * count // 10),
            }
            if name == "cifar100":
                batch[b"coarse_labels"] = [0] * len(batch[b"data"])
            contents[file] = pickled(batch)
        for file in release.meta:
            contents[file] = pickled(
                {
                    b"num_vis": 3072,
                    release.label_names: [b"class%d" % i for i in range(count)],
                    b"coarse_label_names": [b"everything"],
                }
            )
        contents |= replaced
        parts = {
            part: {file: md5(contents[file]) for file in getattr(release, part)} for part in ("train", "test", "meta")
        }
        forged = replace(release, **parts, url=url or release.url)
        monkeypatch.setitem(cifar.RELEASES, name, forged)
        if root is not None:
            (root / forged.folder).mkdir(parents=True)
            for file, content in contents.items():
                (root / forged.folder / file).write_bytes(content)
        return contents

    return make


def packed(members: dict[str, bytes]) -> bytes:
    """A .tar.gz of regular files under exactly these names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def archive(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """The archive of a small CIFAR-10 at `url`, with its MD5 in ``RELEASES``. Extra members come first."""

    def make(url: str, extra: dict[str, bytes] | None = None) -> bytes:
        contents = forge("cifar10", url=url)
        release = cifar.RELEASES["cifar10"]
        content = packed({**(extra or {}), **{f"{release.folder}/{file}": body for file, body in contents.items()}})
        monkeypatch.setitem(cifar.RELEASES, "cifar10", replace(release, md5=md5(content)))
        return content

    return make
