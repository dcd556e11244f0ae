"""The page in a real browser: no errors, sorting, filtering, both themes, and the width of a phone."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.report.browser import Browser, find_chromium, started
from tests.report.folders import make_analysis, make_run, make_spec

from asfedbridge.report.page import Lead, write_page
from asfedbridge.report.runs import gather, gather_unfinished
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
LINES = "[...document.querySelectorAll('#overview .line[data-points]')].filter((l) => l.getClientRects().length)"


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
def test_it_opens_without_errors_and_fits(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool, width: int
) -> None:
    browser.open(pages[name], width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.complaints == []
    assert browser.requests == [pages[name].resolve().as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("document.title") != "owned"
    assert browser.run("document.images.length") == 0
    # Pictures that runs share are drawn in each of them.
    assert browser.run("[...document.querySelectorAll('use')].every((u) => u.getBBox().width > 100)")
    overlaps = browser.run("""[...document.querySelectorAll('svg.chart:not(.lines)')].filter((svg) => {
        const boxes = [...svg.querySelectorAll('text.cell')].map((t) => t.getBoundingClientRect());
        return boxes.some((a, i) => boxes.slice(i + 1).some((b) =>
            a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
    }).length""")
    assert overlaps == 0


def test_themes(browser: Browser, pages: dict[str, Path]) -> None:
    """The theme follows the system until the button sets it to light or dark."""
    background = "getComputedStyle(document.body).backgroundColor"
    backgrounds = {False: "rgb(246, 248, 250)", True: "rgb(14, 16, 19)"}
    for dark in (False, True):
        browser.open(pages["one"], dark=dark)
        browser.run("localStorage.clear()")
        browser.open(pages["one"], dark=dark)
        assert browser.run(background) == backgrounds[dark]
        for name, expected in (("light", False), ("dark", True), ("auto", dark)):
            browser.run("document.getElementById('theme').click()")
            assert browser.run("document.getElementById('theme').textContent") == f"Theme: {name}"
            assert browser.run(background) == backgrounds[expected]


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
    for _ in range(2):  # rows without a value are last in both directions
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


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two seeds each."""
    root = tmp_path_factory.mktemp("seeds")
    for method, level in (("standalone", 50.0), ("as-fedbridge", 60.0)):
        for seed in (0, 1):
            make_run(root / f"{method}-{seed}", make_spec(method, rounds=20, seed=seed), level)
    write_page(root / "page.html", gather([root]), Lead())
    return root / "page.html"


def test_means_and_axes(browser: Browser, seeds: Path) -> None:
    """Means over seeds until a filter or the choice of every run divides them; one axis at a time."""
    browser.open(seeds)
    labels = f"{LINES}.map((l) => l.dataset.label)"
    means = [f"{method}, cifar10, mean over 2 seeds" for method in ("as-fedbridge", "standalone")]
    assert browser.run(labels) == means
    browser.run(f"({CHOOSE})('Over', 'MB')")
    assert browser.run(labels) == means
    units = "[...document.querySelectorAll('#overview svg.lines')].filter((s) => s.getClientRects().length)"
    assert browser.run(f"{units}.map((s) => s.dataset.unit)") == ["MB"]
    browser.run(f"({CHOOSE})('seed', '1')")
    assert browser.run(labels) == [f"{m}, cifar10, seed 1" for m in ("as-fedbridge", "standalone")]
    browser.run(f"({CHOOSE})('seed', '*')")
    browser.run(f"({CHOOSE})('Lines', 'each')")
    assert len(browser.run(labels)) == 4
    assert browser.complaints == []


def test_legends_hide_lines_on_every_axis(browser: Browser, seeds: Path) -> None:
    browser.open(seeds)
    entry = "[...document.querySelectorAll('#overview .legend li')].filter((l) => l.textContent === 'standalone')"
    browser.run(f"{entry}[0].click()")
    for axis in ("rounds", "minutes"):
        browser.run(f"({CHOOSE})('Over', '{axis}')")
        assert browser.run(f"{LINES}.map((l) => l.dataset.series)") == ["as-fedbridge"]
    assert set(browser.run(f"{entry}.map((l) => l.getAttribute('aria-checked'))")) == {"false"}
    browser.run(f"{entry}[2].dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Enter' }}))")
    assert browser.run(f"{LINES}.length") == 2


SAVED = """async (button) => {
  let blob;
  const original = URL.createObjectURL;
  URL.createObjectURL = (given) => { blob = given; return original(given); };
  button.click();
  URL.createObjectURL = original;
  return await blob.text();
}"""


def test_downloads(browser: Browser, seeds: Path) -> None:
    """The CSV of a table has its visible rows, that of a figure its visible lines; an SVG stands alone."""
    browser.open(seeds)
    browser.run(f"({CHOOSE})('method', 'standalone')")
    button = "document.getElementById('runs').parentElement.nextElementSibling"
    rows = browser.run(f"({SAVED})({button})").splitlines()
    assert [row.split(",")[0] for row in rows] == ["method", "standalone", "standalone"]
    buttons = "document.querySelectorAll('#overview figcaption button')"
    table = browser.run(f"({SAVED})({buttons}[1])").splitlines()
    assert table[0] == "line,rounds,value"
    assert len(table) == 21
    last = float(table[-1].rsplit(",", 1)[1])
    accuracies = [float(row) for row in browser.run(f"({COLUMN})('all')")]
    assert last == pytest.approx(sum(accuracies) / 2, abs=0.02)
    browser.run(f"({CHOOSE})('method', '*')")
    for figure in ("#overview figure", "#run-0 figure:has(.multiples)"):
        text = browser.run(f"({SAVED})(document.querySelector('{figure} figcaption button'))")
        svg = ElementTree.fromstring(text)
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
        assert "class=" not in text
        assert "var(" not in text
        names = {element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")}
        assert {"standalone", "0 ANN"} & names
    assert browser.complaints == []


def load_again(browser: Browser, expected: str) -> None:
    """Wait until the page has been loaded again and shows the expected rounds of its last run."""
    ready = "document.readyState === 'complete' && performance.getEntriesByType('navigation')[0].type === 'reload'"
    for _ in range(1200):
        with contextlib.suppress(RuntimeError):  # between two pages
            if browser.run(f"{ready} && ({COLUMN})('rounds').at(-1)") == expected:
                return
        time.sleep(0.1)
    raise AssertionError("the page has not been loaded again")


def test_a_page_with_an_unfinished_run_reloads_itself(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what was written since, and keeps the reader's choices."""
    for name in ("done", "begun"):
        make_run(tmp_path / name, make_spec("standalone", rounds=5, seed=len(name)))
    (tmp_path / "begun" / "summary.json").unlink()
    records = (tmp_path / "begun" / "rounds.jsonl").read_text().splitlines(keepends=True)
    page = tmp_path / "page.html"

    def write(rounds: int, refresh: int) -> None:
        monkeypatch.setattr("asfedbridge.report.page.REFRESH", refresh)
        (tmp_path / "begun" / "rounds.jsonl").write_text("".join(records[: 10 * rounds]))
        write_page(page, [*gather([tmp_path]), *gather_unfinished([tmp_path])[0]], Lead())

    write(2, refresh=3600)
    browser.open(page)
    browser.run(f"({CHOOSE})('Clients', 'snn')")
    assert browser.run(f"({COLUMN})('rounds')")[-1] == "2 of 5 so far"
    write(3, refresh=3600)
    browser.run("location.reload()")
    load_again(browser, "3 of 5 so far")
    assert browser.run("document.getElementById('group').value") == "snn"
    assert set(browser.run(f"{LINES}.map((l) => l.dataset.group)")) == {"snn"}
    write(4, refresh=1)
    browser.open(page)
    load_again(browser, "4 of 5 so far")
