"""Attention between a private model's feature and a messenger's (MH-pFLID, Xie et al., ICML 2024)."""

import math

from torch import Tensor, nn


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V, where the tokens of width d are pieces of one sample's feature.

    Samples of a batch never see each other.
    """

    def __init__(self, feature_dim: int, tokens: int) -> None:
        super().__init__()
        self.tokens, width = tokens, feature_dim // tokens
        self.adapt = nn.Linear(feature_dim, feature_dim, bias=False)  # of the private model's feature: W_d
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)

    def attend(self, asking_BD: Tensor, asked_BD: Tensor) -> Tensor:
        asking_BNd, asked_BNd = (f.unflatten(1, (self.tokens, -1)) for f in (asking_BD, asked_BD))
        match_BNN = self.query(asking_BNd) @ self.key(asked_BNd).mT / math.sqrt(asked_BNd.shape[2])
        answer_BNd: Tensor = match_BNN.softmax(dim=2) @ self.value(asked_BNd)
        return answer_BNd.flatten(1)


class Receiver(Attention):
    """The messenger asks the private model."""

    def forward(self, local_BD: Tensor, messenger_BD: Tensor) -> Tensor:
        return self.attend(messenger_BD, self.adapt(local_BD))


class Transmitter(Attention):
    """The private model asks the messenger."""

    def forward(self, local_BD: Tensor, messenger_BD: Tensor) -> Tensor:
        return self.attend(self.adapt(local_BD), messenger_BD)
