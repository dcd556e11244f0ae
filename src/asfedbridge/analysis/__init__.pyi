from .costs import mean_of as mean_of
from .operations import count_layers as count_layers
from .pairs import CROSS as CROSS
from .pairs import correlate as correlate
