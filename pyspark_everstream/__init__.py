"""Where Spark finds the format "everstream": it looks for `DefaultSource` in a module so named."""

from everstream.inspection.datasource.source import EverstreamSource as DefaultSource

__all__ = ["DefaultSource"]
