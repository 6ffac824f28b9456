"""Exports hadal.flash_mla under FlashMLA's own package name, for programs that import that."""
from hadal import __version__
from hadal.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata

__all__ = ["__version__", "FlashMLASchedMeta", "flash_mla_with_kvcache", "get_mla_metadata"]
