"""Centralized: one backbone of every kind in the fleet, trained on everybody's data. The reference without privacy.

Exchanged: nothing; the data are in one place.
Client: the task's epochs on all training images.
Server: nothing.
Choices:
- the first client of every model, width, kind, T and bits stands for its like, and is tested on all test images;
- as many rounds of as many epochs as the federated methods, so each image is seen equally often.
"""

from dataclasses import dataclass
from typing import ClassVar

from asfedbridge.core.method import register_method
from asfedbridge.methods.standalone import Standalone


@register_method("centralized")
@dataclass(frozen=True)
class Centralized(Standalone):
    pools_data: ClassVar[bool] = True
