from .crop import cut as cut
from .dispatch import describe as describe
