"""What performs on Spark: shards in Spark tasks, frames over ZeroMQ, the coordinator in the driver."""
