"""Sequential code with `with` blocks, read with `ast` and turned into a pipeline."""

from everstream.annotations.function import AnnotatedFunction, AnnotatedPipeline, annotated
from everstream.annotations.loop import LoopSource
from everstream.annotations.markers import Stage, ToStream
from everstream.annotations.problems import AnnotationError
from everstream.annotations.stage import InOrder, StageOperator, frozen

__all__ = [
    "AnnotatedFunction",
    "AnnotatedPipeline",
    "AnnotationError",
    "InOrder",
    "LoopSource",
    "Stage",
    "StageOperator",
    "ToStream",
    "annotated",
    "frozen",
]
