"""What a user writes: pipelines of operators joined by streams, with sources and sinks."""
