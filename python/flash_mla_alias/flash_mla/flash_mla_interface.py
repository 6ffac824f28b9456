"""Exports the functions under the name of the module in which FlashMLA defines them."""
from hadal.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata

__all__ = ["FlashMLASchedMeta", "flash_mla_with_kvcache", "get_mla_metadata"]
