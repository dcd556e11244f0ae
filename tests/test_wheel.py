"""The wheel works without the checkout, in an environment of its own; there is one version."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import asfedbridge

ROOT = Path(__file__).parents[1]


def test_there_is_one_version() -> None:
    """That of the code; the package takes its version from there."""
    assert 'version = {attr = "asfedbridge.__version__"}' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for file, pattern in (("CITATION.cff", r"^version: (\S+)$"), ("CHANGELOG.md", r"^## (\d\S*)")):
        found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert found
        assert found[1] == asfedbridge.__version__


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with nothing but the wheel. Its dependencies are those of this environment,
    where an editable install is found through a .pth file, which is not read from there."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, checkout], check=True)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith(f"asfedbridge-{asfedbridge.__version__}-")
    venv.create(folder / "env")
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", packages, wheel], check=True)
    (packages / "dependencies.pth").write_text(
        "\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    )
    shutil.rmtree(checkout)
    return folder / "env" / "bin" / "python"


COMMANDS = (
    "run smoke rounds=1 --out runs/one",
    "reproduce main --scale smoke --only standalone --columns cifar10 --set rounds=1",
    "report runs --out report.html",
    "evaluate runs/one --json",
    "export runs/one --client 5 --out client.safetensors",
    "costs",
    "list methods",
    "show cpu",
    "flower init federation",
)


@pytest.mark.long
@pytest.mark.timeout(1800)  # kernels are compiled anew
def test_the_wheel_works_without_the_checkout(python: Path, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *words], cwd=tmp_path, env=env, capture_output=True, text=True)

    assert str(python.parents[1]) in run("-c", "import asfedbridge; print(asfedbridge.__file__)").stdout
    for command in COMMANDS:
        done = run("-m", "asfedbridge", *command.split())
        assert done.returncode == 0, f"{command}: {done.stderr[-3000:]}"
        assert done.stdout or done.stderr
    assert (tmp_path / "report.html").stat().st_size > 10_000
    done = run("-m", "asfedbridge", "bench")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "the benchmarks are in the source repository" in done.stderr
