"""``python -m igr`` is the ``igr`` command."""

from igr.cli import main

if __name__ == "__main__":
    main()
