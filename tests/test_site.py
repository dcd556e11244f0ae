"""The documentation site builds without a warning, and its generated pages name everything there is."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

import asfedbridge
from asfedbridge.core.method import METHODS
from asfedbridge.core.task import Neuron, Optimiser
from asfedbridge.runs.spec import Spec

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(out)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return out


def test_every_setting_is_documented(site: Path) -> None:
    page = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    names = [field.name for field in dataclasses.fields(Spec) if field.name not in ("method", "neuron", "optimiser")]
    names += [f"neuron.{field.name}" for field in dataclasses.fields(Neuron)]
    names += [f"optimiser.{field.name}" for field in dataclasses.fields(Optimiser)]
    names += [f"method.{field.name}" for cls in METHODS.values() for field in dataclasses.fields(cls)]
    assert [name for name in names if f"<code>{name}</code>" not in page] == []


def test_every_public_name_is_documented(site: Path) -> None:
    page = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in asfedbridge.__all__ if f">{name}</span>" not in page] == []


def test_every_command_is_documented(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "asfedbridge reproduce" in page
    assert "asfedbridge flower init" in page


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not [mark for mark in ('src="http', "url(http", 'rel="stylesheet" href="http') if mark in text], page


def test_a_setting_without_a_comment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "site"))
    import reference  # type: ignore[import-not-found]

    monkeypatch.setattr(reference, "describe_fields", lambda cls: {f.name: "" for f in dataclasses.fields(cls)})
    with pytest.raises(ValueError, match="data: no comment in the source of Spec"):
        reference.settings_page()
