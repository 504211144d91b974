"""The experiments of the paper, as anyone can rerun them."""
