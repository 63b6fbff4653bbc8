"""Where Spark finds the format "everstream": it looks for `DefaultSource` in modules of such names."""

from everstream.inspection.datasource.source import EverstreamSource as DefaultSource

__all__ = ["DefaultSource"]
