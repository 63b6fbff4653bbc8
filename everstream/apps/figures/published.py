"""The numbers that were published with the figures of ResiPipe: other machines, other languages.

Points are (processes, records per second), as far as the text gives them: mostly the two ends of a
curve. Nothing of them can be compared with a laptop's figures but the shape.
"""

Points = list[tuple[float, float]]

THROUGHPUT: dict[str, dict[str, Points]] = {
    "prime": {
        "DSParLib": [(48, 247084.18)],
        "MPR": [(24, 136354.10)],
        "Open MPI": [(48, 232386.92)],
        "ResiPipe": [(44, 210283.26)],
    },
    "mandelbrot": {
        "DSParLib": [(4, 117.18), (44, 1132.59), (48, 1121.28)],
        "MPR": [(24, 895.30)],
        "Open MPI": [(4, 115.91), (48, 1207.91)],
        "ResiPipe": [(4, 115.07), (44, 1548.19), (48, 1516.38)],
    },
    "compress": {
        "DSParLib": [(4, 14.62), (48, 152.49)],
        "MPR": [(4, 13.55), (24, 67.27), (48, 56.49)],
        "Open MPI": [(4, 14.15), (48, 181.52)],
        "ResiPipe": [(4, 14.05), (48, 173.09)],
    },
    "decompress": {
        "DSParLib": [(28, 95.19), (48, 90.74)],
        "MPR": [(20, 88.20)],
        "Open MPI": [(32, 96.94), (48, 95.94)],
        "ResiPipe": [(4, 43.36), (44, 100.18), (48, 99.30)],
    },
    "eye": {
        "DSParLib": [(4, 3.53), (14, 20.37)],
        "MPR": [(4, 0.99), (14, 6.32)],
        "Open MPI": [(4, 3.53), (14, 20.01)],
        "ResiPipe": [(4, 3.52), (14, 20.06)],
    },
    "sentiment": {"DSParLib": [(5, 0.005025)], "ResiPipe": [(5, 0.005008)]},
}
"""Application -> interface -> its points: figures 5.2 to 5.10, and table 5.1."""

ANNOTATED: dict[str, dict[str, Points]] = {
    "mandelbrot": {
        "annotated": [(4, 92.45), (48, 1251.15)],
        "native": [(4, 115.07), (48, 1516.38)],
    },
    "compress": {"annotated": [(4, 6.84), (48, 164.69)], "native": [(4, 14.05), (48, 173.09)]},
    "decompress": {"annotated": [(4, 38.73), (48, 90.67)], "native": [(4, 43.36), (48, 99.30)]},
}
"""Figure 6.6: SPar's generated code against ResiPipe's own; of prime and eye no number is printed."""
