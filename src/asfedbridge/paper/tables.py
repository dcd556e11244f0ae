"""The values that the paper reports, by table, in percent: (ANN, SNN, mean) or only the mean.

Means are as printed. Some are not the mean of the two columns: CIFAR10-DVS weighs some rows 3:7, and FedFree on
Tiny-ImageNet is a misprint.
"""

Reported = tuple[float, float, float]

MAIN: dict[str, dict[str, Reported]] = {
    "cifar10": {
        "centralized": (95.05, 93.37, 94.21),
        "standalone": (88.66, 84.82, 86.74),
        "isolated-fedavg": (78.13, 83.21, 80.67),
        "isolated-fedprox": (76.16, 82.69, 79.43),
        "fedavg": (40.20, 16.04, 28.12),
        "fedprox": (37.75, 23.57, 30.66),
        "fedfree": (88.95, 60.58, 74.77),
        "fedproto": (90.16, 89.85, 90.01),
        "fedtgp": (90.97, 88.11, 89.54),
        "fml": (91.70, 89.50, 90.60),
        "mh-pflid": (90.69, 87.09, 88.89),
        "as-fedbridge": (91.53, 90.54, 91.12),
    },
    "cifar100": {
        "centralized": (78.73, 74.66, 76.70),
        "standalone": (62.79, 56.61, 59.70),
        "isolated-fedavg": (63.80, 58.44, 61.12),
        "isolated-fedprox": (64.42, 55.86, 60.14),
        "fedavg": (6.41, 3.73, 5.07),
        "fedprox": (5.67, 3.53, 4.60),
        "fedfree": (61.64, 54.18, 57.91),
        "fedproto": (65.53, 71.02, 68.28),
        "fedtgp": (68.43, 63.57, 66.00),
        "fml": (69.42, 68.08, 68.75),
        "mh-pflid": (66.29, 63.99, 65.14),
        "as-fedbridge": (72.21, 71.08, 71.64),
    },
    "tiny-imagenet": {
        "centralized": (60.90, 57.21, 59.06),
        "standalone": (56.60, 46.43, 51.52),
        "isolated-fedavg": (49.66, 48.02, 48.84),
        "isolated-fedprox": (49.90, 40.70, 45.30),
        "fedavg": (1.42, 0.76, 1.09),
        "fedprox": (1.78, 1.44, 1.61),
        "fedfree": (44.11, 43.15, 45.08),
        "fedproto": (58.64, 48.63, 53.63),
        "fedtgp": (58.51, 49.47, 53.99),
        "fml": (57.98, 53.34, 55.66),
        "mh-pflid": (58.27, 50.98, 54.63),
        "as-fedbridge": (55.96, 56.27, 56.12),
    },
    "cifar10-dvs": {
        "centralized": (82.40, 72.80, 77.60),
        "standalone": (76.66, 78.88, 77.77),
        "isolated-fedavg": (51.51, 54.92, 53.90),
        "isolated-fedprox": (50.17, 52.64, 51.90),
        "fedavg": (5.69, 12.98, 10.80),
        "fedprox": (27.76, 12.27, 16.90),
        "fedfree": (29.42, 46.16, 37.79),
        "fedproto": (82.03, 78.13, 80.08),
        "fedtgp": (77.50, 70.32, 72.40),
        "fml": (82.37, 74.43, 78.40),
        "mh-pflid": (71.97, 75.19, 73.58),
        "as-fedbridge": (83.15, 80.98, 82.06),
    },
}

IID: dict[str, dict[str, Reported]] = {
    "cifar10": {
        "standalone": (73.00, 61.90, 67.45),
        "isolated-fedavg": (88.26, 88.08, 88.17),
        "isolated-fedprox": (88.30, 87.40, 87.85),
        "fedavg": (63.40, 9.76, 36.58),
        "fedprox": (55.64, 9.76, 32.70),
        "fedfree": (76.48, 66.54, 71.51),
        "fedproto": (75.16, 75.84, 75.50),
        "fedtgp": (79.08, 63.46, 71.27),
        "fml": (79.58, 75.16, 77.37),
        "mh-pflid": (74.80, 71.32, 73.06),
        "as-fedbridge": (78.78, 78.42, 78.60),
    },
    "cifar100": {
        "standalone": (30.90, 12.84, 21.87),
        "isolated-fedavg": (58.70, 60.22, 59.46),
        "isolated-fedprox": (58.84, 60.10, 59.47),
        "fedavg": (28.96, 0.80, 14.88),
        "fedprox": (24.18, 1.04, 12.61),
        "fedfree": (16.24, 30.98, 23.61),
        "fedproto": (31.98, 37.38, 34.68),
        "fedtgp": (34.52, 32.24, 33.38),
        "fml": (41.50, 37.58, 39.54),
        "mh-pflid": (32.38, 32.80, 32.59),
        "as-fedbridge": (44.28, 44.18, 44.23),
    },
}

MODERATE: dict[str, dict[str, Reported]] = {
    "cifar10": {
        "standalone": (79.71, 75.69, 77.70),
        "isolated-fedavg": (82.86, 89.59, 86.23),
        "isolated-fedprox": (83.48, 85.23, 84.36),
        "fedavg": (62.69, 19.20, 40.95),
        "fedprox": (59.27, 13.49, 36.38),
        "fedfree": (70.52, 75.38, 72.95),
        "fedproto": (80.21, 85.18, 82.70),
        "fedtgp": (81.06, 76.87, 78.97),
        "fml": (82.86, 86.75, 84.81),
        "mh-pflid": (80.73, 78.45, 79.59),
        "as-fedbridge": (87.94, 85.76, 86.85),
    },
    "cifar100": {
        "standalone": (52.36, 52.89, 52.62),
        "isolated-fedavg": (60.09, 53.75, 56.92),
        "isolated-fedprox": (60.85, 51.02, 55.94),
        "fedavg": (25.87, 1.64, 13.76),
        "fedprox": (20.22, 0.45, 10.34),
        "fedfree": (44.31, 28.84, 36.57),
        "fedproto": (50.33, 54.19, 52.26),
        "fedtgp": (52.57, 44.11, 48.34),
        "fml": (55.33, 53.49, 54.41),
        "mh-pflid": (56.88, 50.84, 53.86),
        "as-fedbridge": (59.20, 56.54, 57.87),
    },
}

SCALE: dict[str, dict[str, Reported]] = {
    "cifar10": {
        "standalone": (88.67, 82.41, 85.54),
        "sfedhifi": (89.82, 69.56, 79.69),
        "fedfree": (89.17, 69.47, 79.32),
        "fedproto": (89.05, 89.29, 89.17),
        "fedtgp": (91.80, 84.36, 88.08),
        "fml": (90.38, 85.91, 88.14),
        "mh-pflid": (89.22, 81.24, 85.23),
        "as-fedbridge": (91.38, 88.97, 90.18),
    },
    "cifar100": {
        "standalone": (60.87, 49.78, 55.33),
        "sfedhifi": (63.93, 56.33, 60.13),
        "fedfree": (59.37, 54.91, 57.14),
        "fedproto": (65.68, 62.80, 64.24),
        "fedtgp": (63.42, 61.73, 62.58),
        "fml": (67.34, 66.54, 66.94),
        "mh-pflid": (62.99, 61.79, 62.39),
        "as-fedbridge": (73.24, 72.77, 73.00),
    },
}

ARCHITECTURE: dict[str, dict[str, Reported]] = {
    "cifar10": {
        "standalone": (90.09, 86.03, 88.06),
        "fedfree": (67.10, 69.12, 68.11),
        "fedproto": (89.56, 89.88, 89.72),
        "fedtgp": (68.79, 85.84, 77.32),
        "fml": (91.24, 87.56, 89.40),
        "mh-pflid": (91.43, 87.04, 89.24),
        "as-fedbridge": (92.45, 91.57, 91.88),
    },
    "cifar100": {
        "standalone": (65.31, 61.44, 63.38),
        "fedfree": (61.43, 61.71, 61.57),
        "fedproto": (66.68, 68.79, 67.74),
        "fedtgp": (66.38, 63.72, 65.05),
        "fml": (69.83, 66.77, 68.30),
        "mh-pflid": (65.85, 63.35, 64.60),
        "as-fedbridge": (73.59, 72.62, 72.79),
    },
}

ABLATION: dict[str, Reported] = {
    "ann-to-snn": (65.36, 70.87, 68.12),
    "snn-to-ann": (65.17, 71.43, 68.30),
    "no-pseudo-spike": (68.01, 71.64, 69.83),
    "shared-head": (65.85, 70.44, 68.15),
    "no-pspr": (70.87, 67.63, 69.25),
    "no-quantiser": (67.59, 71.83, 69.71),
    "no-rate-loss": (68.92, 71.82, 70.37),
    "complete": (72.21, 71.08, 71.64),
}

BRIDGE_WIDTH: dict[float, Reported] = {
    0.5: (71.38, 67.41, 69.40),
    0.75: (72.07, 68.26, 70.17),
    1.0: (72.21, 71.08, 71.64),
}

# Mean accuracy by kind: ten equal clients with FedAvg, or five ANN clients and five others with AS-FedBridge.
ALIKE: dict[str, float] = {
    "bnn": 41.25,
    "qnn:b=2": 53.35,
    "qnn:b=4": 61.52,
    "qnn:b=8": 62.31,
    "snn:T=2": 59.39,
    "snn:T=4": 61.06,
    "snn:T=8": 61.81,
    "ann": 63.98,
}
MIXED: dict[str, float] = {
    "bnn": 60.84,
    "qnn:b=2": 65.04,
    "qnn:b=4": 67.09,
    "qnn:b=8": 70.48,
    "snn:T=2": 67.01,
    "snn:T=4": 71.64,
    "snn:T=8": 72.49,
    "ann": 72.67,
}

# Costs on CIFAR-100: one-way payload in MB; training per example and round: GFLOPs of an ANN client, GSOPs and dense
# GFLOPs of an SNN client.
COMMUNICATION: dict[str, tuple[float, float, float, float]] = {
    "fedavg": (43.20, 16.67, 3.09, 0.0),
    "fedprox": (43.20, 16.67, 5.77, 0.0),
    "fedfree": (18.00, 16.67, 2.91, 0.0),
    "fedproto": (0.10, 17.78, 3.09, 0.0),
    "fedtgp": (0.60, 17.78, 2.96, 0.0),
    "fml": (3.93, 18.14, 3.06, 1.47),
    "mh-pflid": (3.93, 18.57, 3.01, 0.79),
    "as-fedbridge": (3.93, 18.57, 3.21, 0.79),
}

# Forward pass of one example, mean over clients: MFLOPs, MBitOPs, MSOPs.
COMPUTATION: dict[str, tuple[float, float, float]] = {
    "bnn": (3.85, 553.65, 0.0),
    "qnn:b=2": (3.85, 2214.60, 0.0),
    "qnn:b=4": (3.85, 8858.40, 0.0),
    "qnn:b=8": (3.85, 35433.60, 0.0),
    "snn:T=2": (0.0, 0.0, 81.69),
    "snn:T=4": (0.0, 0.0, 167.17),
    "snn:T=8": (0.0, 0.0, 338.29),
    "ann": (1111.15, 0.0, 0.0),
    "ann+bnn": (655.59, 276.82, 0.0),
    "ann+qnn:b=2": (655.59, 1107.30, 0.0),
    "ann+qnn:b=4": (655.59, 4429.20, 0.0),
    "ann+qnn:b=8": (655.59, 17716.80, 0.0),
    "ann+snn:T=2": (653.67, 0.0, 40.85),
    "ann+snn:T=4": (653.67, 0.0, 83.58),
    "ann+snn:T=8": (653.67, 0.0, 169.15),
    "ann+ann": (1209.24, 0.0, 0.0),
}
