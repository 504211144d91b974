"""Modules that need an extra are not looked at for doctests where it is not installed."""

from importlib.util import find_spec

PAGE = ("app", "fit", "relaxations", "reproduction", "serving", "widgets")
NEEDS = {
    "dash": [f"src/igr/explorer/{name}.py" for name in PAGE],
    "selenium": ["tests/explorer/browser.py"],
}
collect_ignore = [file for package, files in NEEDS.items() if find_spec(package) is None for file in files]
