// Lists sorted by time.

export const newestFirst = (rows) => [...rows].sort((one, other) => other.at - one.at);
