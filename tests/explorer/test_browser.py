"""The explorer in a real browser: Debian's Chromium, by Selenium."""

import shutil
import statistics
import time

import pytest

pytest.importorskip("dash", reason="needs dash: pip install -e '.[explorer]'")
pytest.importorskip("selenium", reason="needs selenium: pip install selenium")

from browser import browser, explorer, find, open_tab, picture, requests, wait
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

NAMES = ("igr-i", "igr-sb", "igr-planar", "gs")


@pytest.fixture(scope="module")
def url():
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install chromium chromium-driver")
    with explorer("--results", "results/ours") as found:
        yield found


@pytest.fixture(scope="module")
def driver(url):
    with browser() as made:
        made.get(url)
        yield made


@pytest.fixture(autouse=True)
def _quiet(driver, url):
    """After every test: nothing in the console, and nothing asked for that is not here."""
    yield
    assert driver.get_log("browser") == []
    assert [each for each in requests(driver) if not each.startswith(url)] == []


def shown(driver):
    """The numbers and the pictures of all four."""
    return [find(driver, f"#facts-{name}").text for name in NAMES], [picture(driver, name) for name in NAMES]


def settled(driver):
    """The same, once nothing changes any more."""
    open_tab(driver, "Relaxations")
    found = [None]

    def still():
        found.append(shown(driver))
        time.sleep(0.3)
        return all(found[-1][0]) and found[-1] == found[-2]

    wait(still)
    return found[-1]


def test_load(driver):
    facts, pictures = settled(driver)
    assert all("recovered probabilities" in each for each in facts)
    assert len(set(pictures)) == 4
    assert min(map(len, pictures)) > 10_000  # a blank one is much smaller


def test_a_key_moves_a_slider(driver):
    facts, pictures = settled(driver)
    thumb = find(driver, "#mu-1 [role=slider]")
    assert thumb.get_attribute("aria-label") == "μ₁"
    before = float(find(driver, "#mu-1-shown").text)
    thumb.send_keys(Keys.ARROW_RIGHT)
    wait(lambda: float(find(driver, "#mu-1-shown").text) == pytest.approx(before + 0.05))
    wait(lambda: shown(driver)[1] != pictures)
    now = settled(driver)
    assert all(a != b for a, b in zip(facts, now[0], strict=True))
    assert all(a != b for a, b in zip(pictures, now[1], strict=True))
    assert thumb.get_attribute("aria-valuetext") == find(driver, "#mu-1-shown").text


def test_a_drag_moves_a_slider_and_ends_where_it_ends(driver):
    facts, _ = settled(driver)
    watch(driver)
    drag = ActionChains(driver, duration=20).click_and_hold(find(driver, "#tau [role=slider]"))
    for _ in range(40):
        drag.move_by_offset(-1, 0)
    drag.perform()
    wait(lambda: driver.execute_script("return window.painted.length") >= 2)  # before it is let go
    ActionChains(driver).release().perform()
    now, _ = settled(driver)
    assert all(a != b for a, b in zip(facts, now, strict=True))
    thumb = find(driver, "#tau [role=slider]")
    thumb.send_keys(Keys.ARROW_LEFT)  # there and back: what is shown belonged to the last place of the drag
    wait(lambda: shown(driver)[0] != now)
    thumb.send_keys(Keys.ARROW_RIGHT)
    wait(lambda: shown(driver)[0] == now)
    assert settled(driver)[0] == now


def watch(driver):
    """Keeps the times at which keys were pressed and all four pictures were new."""
    driver.execute_script(
        """
        [window.pressed, window.painted, window.strokes] = [[], [], 0];
        if (!window.watched) {
            window.watched = true;
            window.addEventListener("keydown", () => window.pressed.push(performance.now()), true);
            const fill = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                if (String(text).startsWith("distance") && ++window.strokes % 4 === 0) {
                    window.painted.push(performance.now());
                }
                return fill.call(this, text, ...rest);
            };
        }
        """
    )


def test_round_trip(driver, record_property):
    """From a key to four new pictures; a generous bound, since cores are shared and painting is by software."""
    settled(driver)
    watch(driver)
    thumb = find(driver, "#tau [role=slider]")
    for i in range(10):
        thumb.send_keys(Keys.ARROW_RIGHT)
        wait(lambda least=i + 1: driver.execute_script("return window.painted.length") >= least)
        time.sleep(0.1)
    pressed, painted = driver.execute_script("return [window.pressed, window.painted]")
    spent = [b - a for a, b in zip(pressed, painted, strict=True)]
    record_property("round_trip_ms", statistics.median(spent))
    print(f"\nround trip: median {statistics.median(spent):.0f} ms of {[round(each) for each in spent]}")
    assert statistics.median(spent) < 1_000


def test_reset_and_own_logits(driver):
    find(driver, "#reset").click()
    wait(lambda: find(driver, "#tau-shown").text == "0.50")
    facts, _ = settled(driver)
    next(each for each in driver.find_elements("css selector", "summary") if "Logits" in each.text).click()
    find(driver, "#own-logits input").click()
    wait(lambda: "0.3333" in find(driver, "#facts-gs").text)
    now, _ = settled(driver)
    assert now[:3] == facts[:3]
    find(driver, "#own-logits input").click()
    wait(lambda: shown(driver)[0] == facts)
    assert settled(driver)[0] == facts


def test_a_fit_runs_on_in_another_tab_and_stops_and_no_other_window_has_it(driver, url):
    open_tab(driver, "Fit")
    steps = find(driver, "#fit-steps")
    steps.send_keys(Keys.CONTROL, "a")
    steps.send_keys("100000", Keys.TAB)
    find(driver, "#fit-start").click()
    wait(lambda: "running" in find(driver, "#fit-facts").text)
    wait(lambda: find(driver, "#fit-start").get_attribute("disabled"))

    def step():
        return int(find(driver, "#fit-facts").text.split("step")[1].split()[0].replace(",", ""))

    first = step()
    wait(lambda: step() > first)
    open_tab(driver, "Relaxations")
    assert all(settled(driver)[0])
    open_tab(driver, "Fit")
    wait(lambda: step() > first)
    find(driver, "#fit-stop").click()
    wait(lambda: "stopped" in find(driver, "#fit-facts").text)
    last = find(driver, "#fit-facts").text
    assert len(driver.find_elements("css selector", "#fit-masses .bars .point")) == 13
    time.sleep(1.0)
    assert find(driver, "#fit-facts").text == last
    assert not find(driver, "#fit-start").get_attribute("disabled")
    first = driver.current_window_handle
    driver.switch_to.new_window("window")
    driver.get(url)
    open_tab(driver, "Fit")
    wait(lambda: "nothing fitted yet" in find(driver, "#fit-facts").text)
    driver.close()
    driver.switch_to.window(first)
    assert find(driver, "#fit-facts").text == last


def test_tables_and_curves_by_keys(driver):
    wait(lambda: driver.find_elements("css selector", "[role=tab]"))
    tab = driver.find_elements("css selector", "[role=tab]")[2]
    tab.send_keys(Keys.ENTER)
    wait(lambda: tab.get_attribute("aria-selected") == "true")
    wait(lambda: "Table 1: MNIST, linear" in find(driver, "#table-shown").text)
    wait(lambda: driver.find_elements("css selector", "#curves .legendtext"))
    assert "−94.65 ± 0.14" in find(driver, "#table-shown").text
    find(driver, "#architecture").click()
    wait(lambda: [each for each in driver.find_elements("css selector", ".dash-dropdown-option") if each.text])
    options = driver.find_elements("css selector", ".dash-dropdown-option")
    next(each for each in options if each.text == "non-linear").click()
    wait(lambda: "Table 1: MNIST, non-linear" in find(driver, "#table-shown").text)


def test_wide_and_narrow_windows(driver):
    open_tab(driver, "Relaxations")
    for width in (1920, 1280, 700):
        driver.set_window_size(width, 900)
        settled(driver)
        overflow = driver.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, width
