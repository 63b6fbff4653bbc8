"""Continue from a checkpoint that another version of the pipeline wrote: what fits, what is migrated, what is refused."""
