// Sliders ask faster than a server answers. One question at a time is under way; of those that come up meanwhile
// only the newest is kept, and asked as soon as the answer is there.
(() => {
    const PATIENCE = 4000; // milliseconds, after which an answer is taken for lost
    let underWay = 0; // when the question was asked, or 0
    let waiting = null;
    let number = 0;

    const question = (values) => {
        underWay = Date.now();
        waiting = null;
        return [(number += 1), ...values];
    };

    const digits = (value) => {
        const size = Math.abs(value);
        return value.toFixed(size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 3).replace("-", "−");
    };

    // For those who hear the page, or have no mouse: names and values of sliders, and tabs that keys reach.
    const describe = () => {
        document.querySelectorAll(".knob").forEach((knob) => {
            const thumb = knob.querySelector("[role=slider]");
            if (thumb) {
                thumb.setAttribute("aria-label", knob.querySelector("label").textContent);
                thumb.setAttribute("aria-valuetext", knob.querySelector("output").textContent);
            }
        });
        document.querySelectorAll(".tab-container .tab").forEach((tab) => {
            tab.setAttribute("role", "tab");
            tab.setAttribute("aria-selected", tab.classList.contains("tab--selected"));
            tab.tabIndex = 0;
        });
    };

    document.addEventListener("keydown", (event) => {
        if (event.target.matches("[role=tab]") && ["Enter", " "].includes(event.key)) {
            event.preventDefault();
            event.target.click();
        }
    });

    new MutationObserver(describe).observe(document.body, {childList: true, characterData: true, subtree: true});

    window.dash_clientside = window.dash_clientside || {};
    window.dash_clientside.igr = Object.assign(window.dash_clientside.igr || {}, {
        ask: (...values) => {
            if (underWay && Date.now() - underWay < PATIENCE) {
                waiting = values;
                return window.dash_clientside.no_update;
            }
            return question(values);
        },
        answered: (answer) => {
            if (answer === undefined || answer === null) {
                return;
            }
            underWay = 0;
            if (waiting !== null) {
                window.dash_clientside.set_props("wanted", {data: question(waiting)});
            }
        },
        power: (...places) => places.map((place) => digits(10 ** place)),
        plain: (...places) => places.map(digits),
    });
})();
