"""Offers Hadal's kernels to Python; see hadal.flash_mla."""
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("hadal-flash-mla")
except PackageNotFoundError:  # used from a directory that was not installed
    __version__ = "unknown"
