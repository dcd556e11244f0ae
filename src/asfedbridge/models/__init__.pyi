from .registry import MODELS as MODELS
from .zoo import check_backbone as check_backbone
from .zoo import compile_kernels as compile_kernels
from .zoo import outline_backbone as outline_backbone
