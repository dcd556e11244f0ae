"""Centralized: one backbone of every shape in the fleet, trained on all clients' data. The reference without privacy.

Exchanged: nothing; all data are in one place.
Client: trains on all training images for the task's epochs.
Server: nothing.
Choices:
- the first client of every combination of model, width, kind, T and bits is trained, and tested on all test images;
- rounds and epochs are those of the federated methods, so each image is seen equally often.
"""

from dataclasses import dataclass
from typing import ClassVar

from asfedbridge.core.method import register_method
from asfedbridge.methods.standalone import Standalone


@register_method("centralized")
@dataclass(frozen=True)
class Centralized(Standalone):
    pools_data: ClassVar[bool] = True
