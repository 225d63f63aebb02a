"""The report page in a real browser: it renders, can be read and used, and talks to nobody.

Debian's chromium is driven without a screen. Where there is none, these tests are skipped, unless the environment
variable BROWSER_TESTS is "required".
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from dpzv.report import page_server
from dpzv.report.page import write_page
from tests.report.conftest import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
FLAGS += ["--disable-component-update"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A chromium without a screen."""
    program = shutil.which("chromium")
    if program is None:
        told = "the report page was not tested in a browser: this machine has no chromium (apt-get install chromium)"
        if os.environ.get("BROWSER_TESTS") == "required":
            pytest.fail(told)
        pytest.skip(told)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield found
        found.close()


@contextmanager
def opened(browser: Browser, address: str, last: str = "", **settings: Any) -> Iterator[Page]:
    """A page that must not complain, open a dialog, or ask for anything but its own address.

    `last` is the end of the one complaint that is due.
    """
    context = browser.new_context(**settings)
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("request", lambda request: None if request.url == address else wrong.append(f"request: {request.url}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.set_default_timeout(10_000)
    page.goto(address)
    try:
        yield page
    finally:
        context.close()
    assert [complaint for complaint in wrong if not last or not complaint.endswith(last)] == []


@pytest.fixture(scope="module")
def address(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two runs as a file."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    write_page([runs], file)
    return file.as_uri()


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure").filter(has_text=re.compile(f"^{title}"))


def lines_of(runs: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]


def told(value: float) -> str:
    """A number as the page writes it, with five significant digits."""
    return f"{float(f'{value:.5g}'):,.10f}".rstrip("0").rstrip(".")


def painted(place: Locator, name: str) -> int:
    """How many pixels of a chart have the colour that the style sheet calls `name`."""
    count = place.locator("canvas").evaluate(
        """(canvas, name) => {
            const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
            const want = [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
            const copy = document.createElement("canvas");
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const context = copy.getContext("2d", { willReadFrequently: true });
            context.drawImage(canvas, 0, 0);
            const found = context.getImageData(0, 0, copy.width, copy.height).data;
            let count = 0;
            for (let i = 0; i < found.length; i += 4) {
                if (found[i + 3] > 200 && want.every((part, k) => Math.abs(part - found[i + k]) < 8)) count++;
            }
            return count;
        }""",
        name,
    )
    return int(count)


def test_curves_are_drawn_hidden_and_read_by_pointing(browser: Browser, address: str, runs: Path) -> None:
    with opened(browser, address, viewport={"width": 1280, "height": 900}) as page:
        assert page.locator("figure canvas").count() == 6
        place = chart(page, "Test loss")
        assert painted(place, "--c0") > 50
        assert painted(place, "--c1") > 50
        box = place.locator(".u-over").bounding_box()
        assert box is not None
        place.scroll_into_view_if_needed()
        place.locator(".u-over").hover(position={"x": box["width"] - 2, "y": 50})
        tip, last = place.locator(".tip"), {name: lines_of(runs, name)[-1] for name in ("first", "half")}
        assert tip.inner_text().splitlines() == [
            "rounds: 60",
            *(f"{told(line['test_loss'])} {name}" for name, line in last.items()),
        ]
        page.get_by_label("half").uncheck()
        assert painted(place, "--c1") == 0
        assert painted(place, "--c0") > 50
        page.get_by_label("megabytes", exact=True).check()
        wide = "(place) => [place.clientWidth, place.querySelector('.uplot').clientWidth]"
        assert all(len(set(drawn.evaluate(wide))) == 1 for drawn in page.locator(".plot").all())  # drawn anew, they fit
        place.locator(".u-over").hover(position={"x": box["width"] - 2, "y": 50})
        sent = (last["first"]["bytes_up"] + last["first"]["bytes_down"]) / 1e6
        expected = [f"megabytes: {told(sent)}", f"{told(last['first']['test_loss'])} first"]
        assert tip.inner_text().splitlines() == expected
        page.mouse.move(5, 5)
        tip.wait_for(state="hidden")
        for words, seen in (("Hide all runs", False), ("Show all runs", True)):
            page.get_by_role("button", name=words).click()
            assert [painted(place, name) > 50 for name in ("--c0", "--c1")] == [seen, seen]
            assert [page.get_by_role("checkbox", name=name).is_checked() for name in ("first", "half")] == [seen, seen]


SPY = """() => {
    const draw = CanvasRenderingContext2D.prototype.fillText;
    window.written = [];
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        const beside = this.textAlign === "right";  // of the upright axis
        if (beside) window.written.push([this.canvas, String(text), rest[0] - this.measureText(text).width]);
        return draw.call(this, text, ...rest);
    };
}"""


@pytest.mark.parametrize(
    ("low", "step", "marks"),
    [
        (1.129, 4e-5, ["1.1290", "1.1291", "1.1292", "1.1293", "1.1294"]),
        (0.5, 0.1, ["0.6", "0.8", "1.0", "1.2", "1.4"]),
        (1000.0, 2e-7, [f"1,000.00000{n}" for n in ("00", "05", "10", "15", "20")]),
        (0.0, 400.0, ["0", "1,000", "2,000", "3,000", "4,000"]),
        (0.0, 4e20, ["0", "1E21", "2E21", "3E21", "4E21"]),
    ],
)
def test_numbers_beside_an_axis_have_the_decimals_that_tell_them_apart(
    browser: Browser, runs: Path, tmp_path: Path, low: float, step: float, marks: list[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_bytes((runs / "first" / "config.toml").read_bytes())
    line = lines_of(runs, "first")[0]
    lines = [{**line, "round": 10 * i, "test_loss": low + step * i} for i in range(10)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    write_page([tmp_path / "run"], tmp_path / "page.html")
    with opened(browser, (tmp_path / "page.html").as_uri(), viewport={"width": 1280, "height": 900}) as page:
        page.evaluate(SPY)
        page.get_by_role("button", name="Show all of every curve").click()  # drawn anew
        page.wait_for_function("window.written.length > 0")
        canvas = chart(page, "Test loss").locator("canvas")
        found = canvas.evaluate("(canvas) => window.written.filter((one) => one[0] === canvas)")
    assert [text for _, text, _ in found] == marks
    assert min(left for _, _, left in found) >= 0  # none is cut off


def test_everything_is_reached_by_keyboard_and_told_to_screen_readers(
    browser: Browser, address: str, runs: Path
) -> None:
    with opened(browser, address, viewport={"width": 1280, "height": 900}) as page:
        lines = {name: lines_of(runs, name) for name in ("first", "half")}
        place = page.get_by_role("group", name="Test AUC, against rounds")
        place.focus()
        place.press("End")
        said = page.get_by_role("status")
        expected = "; ".join(f"{name} {told(own[-1]['test_auc'])}" for name, own in lines.items())
        assert said.inner_text() == f"rounds 60: {expected}"
        place.press("Home")
        place.press("ArrowRight")  # round 10 of the first run; the second has its nearest values at round 15
        expected = f"first {told(lines['first'][1]['test_auc'])}; half {told(lines['half'][1]['test_auc'])}"
        assert said.inner_text() == f"rounds 10: {expected}"
        page.keyboard.press("Escape")
        assert not chart(page, "Test AUC").locator(".tip").is_visible()
        page.get_by_role("checkbox", name="half").focus()
        page.keyboard.press("Space")
        assert not page.get_by_role("checkbox", name="half").is_checked()
        page.get_by_role("radio", name="virtual seconds").press("Space")
        assert page.get_by_role("group", name="Test AUC, against virtual seconds").count() == 1
        assert page.get_by_role("table").count() == page.locator("table:visible").count()
        assert page.locator("table:not(:has(caption)), input:not(label input), th:not([scope])").count() == 0
        for table in page.locator(".wide").all():  # every table that is scrolled says which one it is
            assert table.get_attribute("aria-label") == table.locator("caption").text_content()
        assert [heading.inner_text() for heading in page.get_by_role("heading", level=2).all()] == [
            *("Runs", "Curves", "Privacy", "Devices", "Settings", "Numbers")
        ]


LUMINANCE = """(selector) => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
        .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    let node = document.querySelector(selector), back = node;
    while (parts(getComputedStyle(back).backgroundColor)[3] === 0) back = back.parentElement;
    return [getComputedStyle(node).color, getComputedStyle(back).backgroundColor].map(parts).map(light);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_reader_and_can_be_read(browser: Browser, address: str, scheme: str) -> None:
    with opened(browser, address, color_scheme=scheme) as page:
        button = page.get_by_role("button", name="Dark colours")
        for dark in (scheme == "dark", scheme != "dark"):
            ink, back = page.evaluate(LUMINANCE, "body")
            assert (back < 0.1) == dark
            assert button.get_attribute("aria-pressed") == str(dark).lower()
            for words in ("body", ".quiet", "dt", "thead th", ".verdict", "mark", "nav a", "button"):
                ink, back = page.evaluate(LUMINANCE, words)
                # the least contrast for text by the web content accessibility guidelines, level AA
                assert (max(ink, back) + 0.05) / (min(ink, back) + 0.05) >= 4.5, words
            assert painted(chart(page, "Test loss"), "--c0") > 50
            button.click()


def test_a_phone_shows_all_of_it_without_scrolling_sideways(browser: Browser, address: str) -> None:
    small = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
    with opened(browser, address, **small) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        widths = [place.bounding_box() for place in page.locator("figure .uplot").all()]
        assert [box is not None and 250 < box["width"] <= 360 for box in widths] == [True] * 6
        page.set_viewport_size({"width": 740, "height": 360})
        for _ in range(100):  # turned sideways, the charts grow with the page
            if page.locator("figure .uplot").first.evaluate("(plot) => plot.clientWidth") > 600:
                break
            page.wait_for_timeout(20)
        else:
            pytest.fail("the charts stayed narrow")


STILL: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
"""A page that does not glide when it is scrolled, so that places on it can be measured."""

LONG_NAMES = ("mnist-paper-dpzv-eps1-seed0-09bfdc0a1b2c", "mnist-paper-vfl-czofo-eps0.5-seed0-3bfe061bf36a")


@pytest.fixture(scope="module")
def steep(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of two runs with long names, whose curves start at 12 % and then stay between 95 % and 98 %."""
    folder = tmp_path_factory.mktemp("steep")
    for i, name in enumerate(LONG_NAMES):
        (folder / name).mkdir()
        for file in ("config.toml", "summary.json"):
            shutil.copy(runs / ("first", "half")[i] / file, folder / name)
        line = lines_of(runs, "first")[0]
        shares = [0.12, *(0.95 + 0.03 * k / 19 + 0.001 * i for k in range(1, 20))]
        lines = [{**line, "round": 10 * k, "test_accuracy": share} for k, share in enumerate(shares)]
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    write_page([folder], folder / "page.html")
    return (folder / "page.html").as_uri()


def test_a_phone_shows_figures_beside_long_names_and_captions_that_stay(browser: Browser, steep: str) -> None:
    with opened(browser, steep, viewport={"width": 390, "height": 800}, is_mobile=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for row in page.locator("#runs tbody tr").all():
            name, figure = (row.locator(cell).first.bounding_box() for cell in ("th", "td"))
            assert name is not None
            assert figure is not None
            assert 0 < name["x"] < figure["x"]
            assert figure["x"] + figure["width"] <= 390
        page.locator("#devices summary").last.click()
        tables = [table for table in page.locator(".wide").all() if table.is_visible()]
        assert len(tables) == 4  # of runs, of the devices of both, and of settings
        for table in tables:
            table.evaluate("(table) => { table.scrollLeft = 150; }")
            caption = table.locator("caption span").bounding_box()
            assert caption is not None
            assert caption["x"] >= 0
            assert caption["x"] + caption["width"] <= 390
        assert page.locator(".wide").first.evaluate("(table) => table.scrollLeft") == 150


def written_beside(page: Page, title: str) -> list[float]:
    """The numbers that were last written beside the upright axis of a chart."""
    found = (
        chart(page, title)
        .locator("canvas")
        .evaluate("(canvas) => window.written.filter((one) => one[0] === canvas).map((one) => one[1])")
    )
    return [float(text.replace(",", "")) for text in found]


def test_charts_open_on_what_follows_a_steep_start(browser: Browser, steep: str) -> None:
    with opened(browser, steep, **STILL) as page:
        page.evaluate(SPY)
        page.get_by_label("seconds", exact=True).check()
        page.get_by_label("rounds", exact=True).check()  # drawn anew, now that the spy is there
        page.wait_for_function("window.written.length > 0")
        assert min(written_beside(page, "Test accuracy")) > 90
        over = chart(page, "Test accuracy").locator(".u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        page.evaluate("window.written = []")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"], box["y"] + 40, steps=4)
        page.mouse.up()  # who zooms into the start sees it
        page.wait_for_function("window.written.length > 0")
        assert min(written_beside(page, "Test accuracy")) < 50
        for words, low in (("Show all of every curve", True), ("Leave out steep starts", False)):
            page.evaluate("window.written = []")
            page.get_by_role("button", name=words).click()
            page.wait_for_function("window.written.length > 0")
            assert (min(written_beside(page, "Test accuracy")) < 50) == low


def test_the_tooltip_is_small_and_lies_beside_the_points(browser: Browser, steep: str) -> None:
    with opened(browser, steep, **STILL) as page:
        place = page.get_by_role("group", name="Test accuracy, %, against rounds")
        for key, high in (("End", True), ("Home", False)):
            place.focus()
            place.press(key)
            tip, box = chart(page, "Test accuracy").locator(".tip").bounding_box(), place.bounding_box()
            assert tip is not None
            assert box is not None
            assert tip["width"] * tip["height"] < box["width"] * box["height"] / 8
            middle = box["y"] + box["height"] / 2
            assert (tip["y"] > middle) == high  # curves are high at the end and low at their start
            assert box["y"] <= tip["y"]
            assert tip["y"] + tip["height"] <= box["y"] + box["height"]


def test_names_from_records_do_not_run(browser: Browser, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / '<img src=x onerror="alert(1)"><script>alert(2)<∕script>'
    shutil.copytree(runs / "first", folder, ignore=shutil.ignore_patterns("checkpoint", "weights", "ledger*"))
    write_page([folder], tmp_path / "page.html")
    with opened(browser, (tmp_path / "page.html").as_uri()) as page:
        place = page.get_by_role("group", name="Test loss, against rounds")
        place.focus()
        place.press("End")
        assert folder.name in chart(page, "Test loss").locator(".tip").inner_text()
        assert page.locator("img").count() == 0


def test_a_watched_page_follows_its_run(
    browser: Browser, stopped: Path, tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New lines are drawn, what the reader chose stays, and the end of the run is told."""
    monkeypatch.setattr(page_server, "RENEW", 0.2)
    live = tmp_path / "live"
    shutil.copytree(stopped, live)
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path))
        with opened(browser, server.address, "ERR_CONNECTION_REFUSED") as page:
            place = page.get_by_role("group", name="Test loss, against seconds")
            page.get_by_label("seconds", exact=True).check()
            page.locator("#numbers summary").click()
            before = len(lines_of(tmp_path, "live"))
            line = {**lines_of(tmp_path, "live")[-1], "round": 60, "seconds": 1234.5, "test_loss": 0.123}
            with (live / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            page.locator("#runs", has_text="1,234.5").wait_for()
            assert page.locator("#numbers tbody tr:visible").count() == before + 1  # it stays unfolded
            assert page.get_by_label("seconds", exact=True).is_checked()
            place.focus()
            place.press("End")
            assert page.get_by_role("status").inner_text() == "seconds 1,234.5: live 0.123"
            assert page.locator("#runs").get_by_text("under way").is_visible()
            shutil.copy(runs / "first" / "summary.json", live)
            page.locator("#runs").get_by_text("finished").wait_for()
            assert "best attack on one record" in cast(str, page.locator("#privacy").text_content())
            stack.close()
            page.get_by_text("dpzv watch has ended").wait_for()
