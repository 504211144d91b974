"""The commands of ``igr``, a file each. Nothing heavy is imported before a command runs."""
