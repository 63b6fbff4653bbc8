// Lists by time, whatever order they come in.

export const newestFirst = (rows) => [...rows].sort((one, other) => other.at - one.at);
