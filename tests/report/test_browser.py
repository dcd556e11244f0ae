"""The page in a real browser: no complaint, sorting, filtering, both themes, and a phone's width."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, find_chromium, started
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge.report.page import Lead, write_page
from asfedbridge.report.runs import gather
from asfedbridge.report.tables import Titled

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")

COLUMN = """(name) => {
  const heads = [...document.querySelectorAll('#runs thead th')].map((h) => h.textContent);
  return [...document.querySelectorAll('#runs tbody tr')].filter((r) => r.getClientRects().length)
    .map((r) => r.cells[heads.indexOf(name)].textContent);
}"""
CLICK = """(name) => [...document.querySelectorAll('#runs thead button')].find((b) => b.textContent === name).click()"""
CHOOSE = """(label, value) => {
  const field = [...document.querySelectorAll('label')].find((l) => l.textContent.startsWith(label)).lastChild;
  field.value = value;
  field.dispatchEvent(new Event('input', { bubbles: true }));
}"""
LINES = "[...document.querySelectorAll('#overview .line')].filter((l) => l.getClientRects().length)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pages")
    evil = "npz:<img src=x onerror=document.title='owned'>.npz"
    for i, (method, data, seed, level) in enumerate(
        [("standalone", "cifar10", 2, 9.0), ("fedavg", "cifar10", 10, 70.0), ("as-fedbridge", evil, 1, 50.0)]
    ):
        summary = make_run(root / "runs" / str(i), make_spec(method, data=data, seed=seed), level)
        make_analysis(root / "runs" / str(i), summary)
    write_page(root / "many.html", gather([root / "runs"]), Lead(tables=[Titled("A wide table", [["x" * 60] * 9] * 3)]))
    write_page(root / "one.html", gather([root / "runs" / "2"]), Lead())
    return {name: root / f"{name}.html" for name in ("one", "many")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM
    with started(CHROMIUM, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.parametrize("name", ["one", "many"])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_opens_without_complaint_and_fits(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool, width: int
) -> None:
    browser.open(pages[name], width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.complaints == []
    assert browser.requests == [pages[name].resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.title") != "owned"
    assert browser.run("document.images.length") == 0
    # Pictures that are shared between runs are really drawn.
    assert browser.run("[...document.querySelectorAll('use')].every((u) => u.getBBox().width > 100)")
    overlaps = browser.run("""[...document.querySelectorAll('svg.chart:not(.lines)')].filter((svg) => {
        const boxes = [...svg.querySelectorAll('text.cell')].map((t) => t.getBoundingClientRect());
        return boxes.some((a, i) => boxes.slice(i + 1).some((b) =>
            a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
    }).length""")
    assert overlaps == 0


def test_themes(browser: Browser, pages: dict[str, Path]) -> None:
    """As the system has it, then light and dark by the button, whatever the system has."""
    ground = "getComputedStyle(document.body).backgroundColor"
    grounds = {False: "rgb(246, 248, 250)", True: "rgb(14, 16, 19)"}
    for dark in (False, True):
        browser.open(pages["one"], dark=dark)
        browser.run("localStorage.clear()")
        browser.open(pages["one"], dark=dark)
        assert browser.run(ground) == grounds[dark]
        for name, expected in (("light", False), ("dark", True), ("auto", dark)):
            browser.run("document.getElementById('theme').click()")
            assert browser.run("document.getElementById('theme').textContent") == f"Theme: {name}"
            assert browser.run(ground) == grounds[expected]


def test_sorting(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["many"])
    accuracies = browser.run(f"({COLUMN})('all')")
    assert browser.run(f"({COLUMN})('seed')") == ["2", "10", "1"]
    for name, rising in (("seed", ["1", "2", "10"]), ("all", sorted(accuracies, key=float))):
        browser.run(f"({CLICK})('{name}')")
        assert browser.run(f"({COLUMN})('{name}')") == rising
        browser.run(f"({CLICK})('{name}')")
        assert browser.run(f"({COLUMN})('{name}')") == rising[::-1]
    rows = browser.run("[...document.querySelectorAll('#runs tbody tr')].map((r) => r.dataset.run)")
    assert browser.run("[...document.querySelectorAll('details.run')].map((d) => d.id)") == rows
    for _ in range(2):  # what has no value is last, up and down
        browser.run(f"({CLICK})('paper all')")
        assert browser.run(f"({COLUMN})('paper all')")[-1] == "-"
    heads = browser.run("[...document.querySelectorAll('#runs th[aria-sort]')].map((h) => h.textContent)")
    assert heads == ["paper all"]


def test_filtering(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["many"])
    labels = f"{LINES}.map((l) => l.dataset.series)"
    assert browser.run(labels) == ["standalone", "fedavg", "as-fedbridge"]
    browser.run(f"({CHOOSE})('method', 'fedavg')")
    assert browser.run(f"({COLUMN})('method')") == ["fedavg"]
    assert browser.run(labels) == ["fedavg"]
    assert browser.run("document.getElementById('shown').textContent") == "1 of 3 runs"
    visible = "[...document.querySelectorAll('{}')].filter((e) => e.getClientRects().length).length"
    assert browser.run(visible.format("details.run")) == 1
    assert browser.run(visible.format("#overview .legend li")) == 1
    browser.run(f"({CHOOSE})('method', '*')")
    browser.run(f"({CHOOSE})('text', 'CIFAR10 Stand')")
    assert browser.run(f"({COLUMN})('method')") == ["standalone"]
    browser.run(f"({CHOOSE})('text', '')")
    browser.run(f"({CHOOSE})('Clients', 'snn')")
    assert set(browser.run(f"{LINES}.map((l) => l.dataset.group)")) == {"snn"}
    assert len(browser.run(labels)) == 3
    assert browser.complaints == []


def test_values_under_the_pointer(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    browser.run("document.querySelector('svg.lines').scrollIntoView()")
    box = browser.run("document.querySelector('svg.lines').getBoundingClientRect().toJSON()")
    place = {"x": box["x"] + box["width"] * 0.97, "y": box["y"] + box["height"] * 0.3}
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
    tip = browser.run("[...document.getElementById('tip').children].map((d) => d.textContent)")
    means = browser.run(
        "[...document.querySelectorAll('details.run table')[0].rows[1].cells].map((c) => c.textContent)"
    )
    shown = {line.split("  ")[1]: float(line.split("  ")[0]) for line in tip[1:]}
    assert tip[0] == "round 80"
    for label, mean in zip(("ANN", "SNN", "all clients"), means[1:], strict=True):
        assert shown[label] == pytest.approx(float(mean), abs=0.06)


def test_a_link_opens_its_run(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["many"])
    assert not browser.run("document.getElementById('run-1').open")
    browser.run("document.querySelector('a[href=\"#run-1\"]').click()")
    assert browser.run("new Promise((r) => setTimeout(() => r(document.getElementById('run-1').open), 200))")
