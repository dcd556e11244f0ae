"""Attention between a private model's feature and a messenger's (MH-pFLID, Xie et al., ICML 2024)."""

import math

from torch import Tensor, nn


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V. The tokens, of width d, are slices of one sample's feature, so samples of a batch
    do not interact."""

    def __init__(self, feature_dim: int, tokens: int) -> None:
        super().__init__()
        self.tokens, width = tokens, feature_dim // tokens
        self.adapt = nn.Linear(feature_dim, feature_dim, bias=False)  # W_d, applied to the private model's feature
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def attend(self, queries_BD: Tensor, values_BD: Tensor) -> Tensor:
        queries_BNd, values_BNd = (f.unflatten(1, (self.tokens, -1)) for f in (queries_BD, values_BD))
        scores_BNN = self.query(queries_BNd) @ self.key(values_BNd).mT / math.sqrt(values_BNd.shape[2])
        out_BNd: Tensor = scores_BNN.softmax(dim=2) @ self.value(values_BNd)
        return out_BNd.flatten(1)


class Receiver(Attention):
    """The messenger's feature gives the queries, the private model's feature the keys and values."""

    def forward(self, local_BD: Tensor, messenger_BD: Tensor) -> Tensor:
        return self.attend(messenger_BD, self.adapt(local_BD))


class Transmitter(Attention):
    """The private model's feature gives the queries, the messenger's feature the keys and values."""

    def forward(self, local_BD: Tensor, messenger_BD: Tensor) -> Tensor:
        return self.attend(self.adapt(local_BD), messenger_BD)
