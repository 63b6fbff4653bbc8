"""The page of a run, its API and its metrics, over HTTP: needs the extra `ui`."""
