"""A published archive: where it is, and how it is known."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str

    @property
    def archive(self) -> str:
        """Its file name."""
        return self.url.rpartition("/")[2]
