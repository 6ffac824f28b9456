"""Offers Hadal's kernels to Python; see hadal.flash_mla."""
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("hadal-flash-mla")
except PackageNotFoundError:  # the package is used from a directory and was not installed
    __version__ = "unknown"
