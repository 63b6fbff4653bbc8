"""Files: text, JSON lines, CSV, Parquet and bytes, local or in an object store."""
