"""What other programming interfaces take for the same applications: ResiPipe's tables 5.2, 5.3."""

PUBLISHED_APPS = ("prime", "mandelbrot", "eye", "decompress", "compress", "sentiment")

LINES: dict[str, dict[str, int]] = {
    "SPar": dict(zip(PUBLISHED_APPS, (25, 56, 64, 104, 72), strict=False)),
    "ResiPipe": dict(zip(PUBLISHED_APPS, (60, 130, 106, 133, 106, 120), strict=True)),
    "DSParLib": dict(zip(PUBLISHED_APPS, (65, 157, 146, 139, 106, 196), strict=True)),
    "MPR": dict(zip(PUBLISHED_APPS, (74, 140, 138, 164, 131), strict=False)),
    "MPI": dict(zip(PUBLISHED_APPS, (119, 157, 154, 204, 171), strict=False)),
}
"""Source lines of code, by interface and application."""

HOURS: dict[str, dict[str, float]] = {
    "SPar": dict(zip(PUBLISHED_APPS, (0.67, 2.61, 1.63, 6.12, 2.82), strict=False)),
    "ResiPipe": dict(zip(PUBLISHED_APPS, (1.53, 6.43, 3.46, 6.29, 3.41, 6.52), strict=True)),
    "DSParLib": dict(zip(PUBLISHED_APPS, (1.39, 10.27, 7.39, 6.94, 3.49, 14.50), strict=True)),
    "MPR": dict(zip(PUBLISHED_APPS, (2.10, 7.09, 6.77, 10.19, 5.90), strict=False)),
    "MPI": dict(zip(PUBLISHED_APPS, (8.33, 13.04, 11.61, 18.44, 13.46), strict=False)),
}
"""Halstead's hours, by interface and application."""
