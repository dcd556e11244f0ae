"""Use the clients of a finished run: predict on image files, evaluate, and export to other formats.

Only the run's folder is needed. It may have been copied from another machine; the training data are not needed.
"""

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import asfedbridge as afb


def write_pictures(folder: Path) -> None:
    """Ten digits as image files, named by what they show (asfedbridge data images digits --out DIR does the same)."""
    folder.mkdir(exist_ok=True)
    digits = load_digits()
    for pixels, label in zip(digits.images[:10], digits.target[:10], strict=True):
        Image.fromarray((pixels * 255 / 16).astype(np.uint8)).save(folder / f"{label}.png")


def main() -> None:
    spec = afb.recipe("smoke", fleet="1*vgg9@0.125:ann,1*vgg9@0.125:snn", rounds=4, train_per_class=60, seed=1)
    folder = afb.run(spec).folder

    run = afb.load(folder)
    ann, snn = run.clients
    write_pictures(Path("pictures"))
    for client in (ann, snn):
        found = client.predict("pictures")  # files, a folder, PIL images, or uint8 arrays [N, H, W, C]
        pairs = zip(found.inputs, found.names, strict=True)
        print(client.kind, "sees", ", ".join(f"{Path(file).stem} as {name}" for file, name in pairs))
    fused = ann.predict("pictures", fused=True)  # backbone and Bridge together
    print(f"fused: {fused.names}, the first with a probability of {fused.probabilities[0].max():.2f}")

    judged = snn.evaluate("digits")  # any data set with the same classes; also a pair (images, labels)
    print(f"snn: {judged.accuracy:.1f} % of {judged.images}, {judged.spikes:.0f} spikes and {judged.sops:.0f} SOPs")

    # A .safetensors file needs only torch to run; .onnx and .nir need pip install 'asfedbridge[export]' to be written.
    written = snn.export("snn.safetensors", verify=True)
    print(f"written: {[file.name for file in written.files]}")
    print(f"largest difference in logits: {written.outcomes['loader'].difference:.1e}")


if __name__ == "__main__":
    main()
