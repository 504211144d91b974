import os
from pathlib import Path

import igr

project = "igr"
author = "the igr authors"
copyright = "2026, the igr authors"
release = version = igr.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links may name a heading: maths.md#the-nearest-vertex
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False

# tutorials run while they are read; what fails in them, or writes to stderr, fails the build
os.environ["OMP_NUM_THREADS"] = "1"  # sums in one order, whatever the number of cores
os.environ["JUPYTER_PATH"] = str(Path(__file__).parent / "_jupyter")  # the kernel of this environment, and a quiet one
nb_execution_mode = "inline"
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_eval_name_regex = ".+"  # numbers in the text are expressions: {eval}`f"{tau:.2f}"`
nb_output_stderr = "error"
nb_render_markdown_format = "myst"  # with tables
nb_merge_streams = True

html_theme = "furo"
html_title = f"igr {version}"
