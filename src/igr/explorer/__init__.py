"""The web page of `igr explore`."""
