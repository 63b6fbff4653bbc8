"""What FERDiS reports, to be shown beside our own figures: its tables 3 to 6, as printed.

UC is uncoordinated, CC coordinated (aligned) and CIC communication-induced (HMNR); the number is
the checkpoint interval in seconds. S and L are small and large windows. The paper measured on 32
cores at 80 % of what the uncoordinated protocol could take; a figure means something only against
the others of its query.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRun:
    """One row of the paper: query, protocol and interval."""

    query: str
    protocol: str
    interval_s: int


@dataclass(frozen=True)
class PaperLatency:
    mean_ms: float
    p95_ms: float
    p99_ms: float
    deviation_ms: float


@dataclass(frozen=True)
class PaperCheckpoints:
    regular: int
    forced: int
    take_ms: float
    deviation_ms: float


@dataclass(frozen=True)
class PaperRecovery:
    recovery_s: float
    recovery_deviation_s: float
    rollback_s: float
    rollback_deviation_s: float


@dataclass(frozen=True)
class PaperLoss:
    lost: int
    lost_deviation: int
    failed: str
    """The kind of operator that was killed."""
    input_per_s: int
    output_per_s: float

    @property
    def lost_s(self) -> float:
        """The lost messages as seconds of output: the paper's column "lost throughput"."""
        return self.lost / self.output_per_s


def _keyed(rows: str) -> dict[PaperRun, list[str]]:
    runs = {}
    for line in rows.strip().splitlines():
        query, protocol, interval, *values = line.split()
        runs[PaperRun(query, protocol, int(interval))] = values
    return runs


LATENCY = {
    run: PaperLatency(*map(float, values))
    for run, values in _keyed("""
nexmark-2 UC 10 39.45 74 117 21.32
nexmark-2 UC 15 42.82 80 120 22.81
nexmark-2 CC 10 41.69 71 134 23.06
nexmark-2 CC 15 44.45 73 172 25.36
nexmark-2 CIC 10 45.25 100 214 37.22
nexmark-2 CIC 15 43.85 87 229 35.91
wordcount-large UC 10 1180.92 1771 2798 507.28
wordcount-large UC 15 1235.92 1911 2808 498.06
wordcount-large CC 10 980.28 1674 1757 467.73
wordcount-large CC 15 1103.94 2040 2126 490.24
wordcount-large CIC 10 771.57 2021 2962 663.43
wordcount-large CIC 15 849.71 2158 2806 678.36
wordcount-small UC 10 817.45 2053 2115 590.60
wordcount-small UC 15 820.25 2046 2109.45 585.74
wordcount-small CC 10 832.70 2118 3107 842.91
wordcount-small CC 15 865.92 2107 3098 827.47
wordcount-small CIC 10 422.84 1117 1162 469.34
wordcount-small CIC 15 381.82 1108 1160 460.50
nhop UC 10 168.37 254.85 356 69.84
nhop UC 15 170.82 270.05 325 64.31
nhop CIC 10 99.81 144 431 69.64
nhop CIC 15 94.83 132 366.01 62.18
""").items()
}
"""Table 3: latency without failures."""

CHECKPOINTS = {
    run: PaperCheckpoints(int(values[0]), int(values[1]), float(values[2]), float(values[3]))
    for run, values in _keyed("""
nexmark-2 UC 10 240 0 56 32
nexmark-2 UC 15 168 0 61 19
nexmark-2 CC 10 240 0 52 24
nexmark-2 CC 15 168 0 57 31
nexmark-2 CIC 10 222 18 68 20
nexmark-2 CIC 15 153 15 73 19
wordcount-small UC 10 235 0 57 21
wordcount-small UC 15 164 0 57 17
wordcount-small CC 10 240 0 52 15
wordcount-small CC 15 168 0 59 39
wordcount-small CIC 10 217 19 70 22
wordcount-small CIC 15 137 27 75 48
nexmark-3-large UC 10 238 0 85 83
nexmark-3-large UC 15 165 0 88 79
nexmark-3-large CC 10 239 0 82 78
nexmark-3-large CC 15 164 0 87 75
nexmark-3-large CIC 10 189 51 97 77
nexmark-3-large CIC 15 134 34 107 80
nexmark-5-large UC 10 223 0 188 249
nexmark-5-large UC 15 152 0 204 263
nexmark-5-large CC 10 240 0 195 265
nexmark-5-large CC 15 152 0 205 263
nexmark-5-large CIC 10 120 113 197 230
nexmark-5-large CIC 15 82 80 221 266
nhop UC 10 240 0 100 65
nhop UC 15 168 0 105 63
nhop CIC 10 156 84 104 58
nhop CIC 15 121 46 112 61
""").items()
}
"""Table 4: checkpoints without failures."""

RECOVERY = {
    run: PaperRecovery(*map(float, values))
    for run, values in _keyed("""
nexmark-2 UC 10 44 9.14 25.8 7.72
nexmark-2 UC 15 43 4.03 31.06 7.74
nexmark-2 CC 10 35 0.71 24.07 0.36
nexmark-2 CC 15 35 1.89 29.04 0.36
nexmark-2 CIC 10 42 3.29 25.9 5.37
nexmark-2 CIC 15 48 7.71 34.56 8.29
nexmark-3-large UC 10 23 9.85 18.73 7.05
nexmark-3-large UC 15 28 3.72 26.83 7.59
nexmark-3-large CC 10 28 2.39 19.51 2.44
nexmark-3-large CC 15 30 5.77 23.75 1.52
nexmark-3-large CIC 10 23 3.22 24.5 4.4
nexmark-3-large CIC 15 28 7.71 28.97 11.43
nexmark-6-small UC 10 49 7.72 15.23 7.67
nexmark-6-small UC 15 40 8.72 22.99 10.72
nexmark-6-small CC 10 65 18.84 30.09 12.56
nexmark-6-small CC 15 61 1.26 21.43 2.06
nexmark-6-small CIC 10 44 4.57 17.45 5.16
nexmark-6-small CIC 15 46 9.19 19.37 8.06
wordcount-small UC 10 41 1.79 21.51 2.29
wordcount-small UC 15 36 4.59 26.33 6.34
wordcount-small CC 10 35 0.64 20.58 0.74
wordcount-small CC 15 40 0.75 25.42 1.22
wordcount-small CIC 10 53 16.74 23.09 2.95
wordcount-small CIC 15 44 0.52 30.83 5.98
nhop UC 10 41 3.33 118.62 25.82
nhop UC 15 36 2.06 113.82 37.36
nhop CIC 10 30 1.23 20.68 5.62
nhop CIC 15 27 1.1 22.0 8.64
""").items()
}
"""Table 5: one failure. The rollback distances of NHop under UC are the domino effect."""

LOSS = {
    run: PaperLoss(int(v[0]), int(v[1]), v[2], round(float(v[3]) * 1000), float(v[4]) * 1000)
    for run, v in _keyed("""
nexmark-2 UC 10 14304 9421 filter 45 22.6
nexmark-2 UC 15 35948 4512 filter 45 22.5
nexmark-2 CIC 10 20547 659 filter 45 21.6
nexmark-2 CIC 15 32905 586 filter 45 21.8
nexmark-3-large UC 10 173 126 join 5.4 0.16
nexmark-3-large UC 15 368 251 join 5.4 0.16
nexmark-3-large CIC 10 288 25 join 5.4 0.16
nexmark-3-large CIC 15 529 14 join 5.4 0.16
nexmark-3-small UC 10 915 1411 join 25 4.9
nexmark-3-small UC 15 4345 4874 join 25 4.8
nexmark-3-small CIC 10 6565 1887 join 25 4.6
nexmark-3-small CIC 15 12241 440 join 25 4.5
wordcount-large UC 10 34 28 aggregate 6 0.013
wordcount-large UC 15 2 0 aggregate 6 0.013
wordcount-large CIC 10 13 0 aggregate 6 0.013
wordcount-large CIC 15 58 0 aggregate 6 0.013
wordcount-small UC 10 331 63 aggregate 17 0.13
wordcount-small UC 15 692 88 aggregate 17 0.13
wordcount-small CIC 10 193 0 aggregate 17 0.13
wordcount-small CIC 15 713 62 aggregate 17 0.13
""").items()
}
"""Table 6: messages lost in one failure, with the logs only in memory. CC loses none."""
